"""What must hold when parts of the platform die under load: the books, the caps, the answers."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from platform_bench import (
    GATEWAY_NAMESPACE,
    MODEL,
    Platform,
    eventually,
    kill,
    main_process,
    terrace,
)

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _healthy(platform: Platform) -> Iterator[None]:
    platform.set_faults()
    platform.wait_ready()
    yield
    platform.set_faults()


@contextmanager
def load(platform: Platform, key: str, *, callers: int) -> Iterator[Counter[str]]:
    """Callers that call without pause until the block ends; counts what they saw."""
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def call() -> None:
        with httpx.Client(trust_env=False) as client:
            while not stop.is_set():
                try:
                    answer = platform.call(key, client=client)
                    seen[str(answer.status_code)] += 1
                except httpx.TransportError as error:
                    seen[type(error).__name__] += 1

    with ThreadPoolExecutor(callers) as pool:
        running = [pool.submit(call) for _ in range(callers)]
        try:
            yield seen
        finally:
            stop.set()
    for one in running:
        one.result()


def settle(platform: Platform, key_id: str, *, after: int) -> None:
    """Reconcile until both books agree; the ledger may never be below the bill on the way."""

    def agree() -> bool:
        state = platform.key_state(key_id)
        held = state["settled_micro_usd"] + state["outstanding_micro_usd"]
        billed = sum(e["cost_micro_usd"] for e in platform.bill.entries(after=after))
        assert held >= billed, f"{held} held, {billed} billed"
        terrace("reconcile", expect=None)
        return platform.compare(key_id, after=after).is_equal

    try:
        eventually(agree, "ledger and bill agree", 240)
    except AssertionError:
        print(platform.compare(key_id, after=after))
        raise
    comparison = platform.compare(key_id, after=after)
    print(
        f"\n  {comparison.attempts} attempts, {comparison.ledger_micro_usd} micro-USD in both books"
    )


@pytest.mark.parametrize("container", ["guard", "translator"])
def test_a_container_killed_in_mid_stream_costs_what_was_billed(
    platform: Platform, container: str
) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL], budget_micro_usd=1_000_000)
    platform.set_faults({"model": MODEL, "kind": "chunk_latency", "seconds": 0.3})
    pod = platform.gateway_pods()[0]
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "count to a hundred"}],
        "max_tokens": 200,
        "stream": True,
    }
    received = b""
    broken: Exception | None = None
    try:
        with httpx.stream(
            "POST",
            f"http://{pod['status']['podIP']}:8080/v1/chat/completions",
            headers={"authorization": f"Bearer {made['key']}"},
            json=body,
            timeout=30,
            trust_env=False,
        ) as stream:
            assert stream.status_code == 200
            for chunk in stream.iter_raw():
                received += chunk
                if received.count(b"data:") >= 3 and broken is None:
                    broken = RuntimeError("no error seen")
                    kill(main_process(pod, container))
    except httpx.TransportError as error:
        broken = error
    # Either the connection breaks or the stream says so; it never ends as if it were complete.
    assert b"[DONE]" not in received
    assert isinstance(broken, httpx.TransportError) or b'"error"' in received
    platform.set_faults()
    platform.wait_ready()
    settle(platform, made["key_id"], after=after)
    # That the translator is gone is noticed a moment after its end, and its start takes a while.
    eventually(lambda: platform.call(made["key"]).status_code == 200, "calls pass again")


def test_a_killed_pod_comes_back_with_its_volume_and_replays_its_spool(
    platform: Platform,
) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL], budget_micro_usd=1_000_000)
    pod = next(p for p in platform.gateway_pods() if p["metadata"]["name"] == "gateway-0")
    url = f"http://{pod['status']['podIP']}:8080/v1/chat/completions"
    headers = {"authorization": f"Bearer {made['key']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "count"}], "max_tokens": 200}
    volumes = platform.claims()
    platform.set_faults({"model": MODEL, "kind": "chunk_latency", "seconds": 0.3})
    began = threading.Barrier(4, timeout=120)

    def stream() -> None:
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream(
                "POST", url, headers=headers, json={**body, "stream": True},
                timeout=60, trust_env=False,
            ) as answer,
        ):  # fmt: skip
            assert answer.status_code == 200
            chunks = answer.iter_raw()
            next(chunks)
            began.wait()
            for _ in chunks:
                pass

    with ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(stream) for _ in range(3)]
        began.wait()
        # Both at once: the guard can neither end its streams nor write what became of them.
        for container in ("guard", "translator"):
            kill(main_process(pod, container))
        platform.kubectl(
            *("-n", GATEWAY_NAMESPACE, "delete", "pod", "gateway-0"),
            *("--grace-period=0", "--force", "--wait=false"),
        )
        for one in streams:
            one.result()
    platform.set_faults()

    def is_back() -> bool:
        return any(
            p["metadata"]["name"] == "gateway-0" and p["metadata"]["uid"] != pod["metadata"]["uid"]
            for p in platform.gateway_pods()
        )

    eventually(is_back, "gateway-0 is back", 240)
    assert platform.claims() == volumes
    settle(platform, made["key_id"], after=after)
    entries = platform.ledger(made["key_id"])
    assert sorted(e["kind"] for e in entries if e["kind"] != "correction") == ["unknown"] * 3
    assert platform.call(made["key"]).status_code == 200


def test_one_replica_less_and_one_more_lose_nothing(platform: Platform) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL])
    volumes = platform.claims()
    assert set(volumes) == {"spool-gateway-0", "spool-gateway-1"}
    try:
        with load(platform, made["key"], callers=3) as seen:
            eventually(lambda: seen["200"] >= 5, "calls go through")
            platform.scale_gateway(1)
            assert platform.claims() == volumes
            before = seen["200"]
            eventually(lambda: seen["200"] >= before + 5, "calls go through one replica")
            platform.scale_gateway(2)
            before = seen["200"]
            eventually(lambda: seen["200"] >= before + 5, "calls go through two again")
    finally:
        platform.scale_gateway(2)
    print(f"\n  {dict(seen)}")
    assert set(seen) == {"200"}, seen
    assert platform.claims() == volumes
    settle(platform, made["key_id"], after=after)


def test_postgres_deleted_during_calls_loses_and_doubles_nothing(platform: Platform) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL])
    with load(platform, made["key"], callers=6) as seen:
        eventually(lambda: seen["200"] >= 10, "calls go through")
        platform.kubectl("-n", "terrace-foundation", "delete", "pod", "postgres-0", "--wait=false")
        eventually(lambda: seen["503"] >= 1, "calls are refused while Postgres is away")
        before = seen["200"]
        eventually(lambda: seen["200"] >= before + 10, "calls go through again", 180)
    print(f"\n  {dict(seen)}")
    assert set(seen) <= {"200", "503"}, seen
    settle(platform, made["key_id"], after=after)


def test_fifty_callers_on_a_cap_of_twenty_calls_get_twenty(platform: Platform) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL], max_requests=20)
    with ThreadPoolExecutor(50) as pool:
        statuses = Counter(
            answer.status_code
            for answer in pool.map(lambda _: platform.call(made["key"]), range(50))
        )
    assert statuses == {200: 20, 429: 30}
    assert len(list(platform.bill.entries(after=after))) == 20
    settle(platform, made["key_id"], after=after)


def test_fifty_callers_on_a_money_cap_never_pass_it(platform: Platform) -> None:
    after = platform.bill.last_seq()
    cap = 200
    made = platform.new_key(models=[MODEL], budget_micro_usd=cap)
    with ThreadPoolExecutor(50) as pool:
        statuses = Counter(
            answer.status_code
            for answer in pool.map(lambda _: platform.call(made["key"]), range(50))
        )
    assert set(statuses) == {200, 429}
    for _ in range(50):
        if platform.call(made["key"]).status_code == 429:
            break
    else:
        pytest.fail("the cap never held")
    state = platform.key_state(made["key_id"])
    billed = sum(e["cost_micro_usd"] for e in platform.bill.entries(after=after))
    assert state["settled_micro_usd"] + state["outstanding_micro_usd"] <= cap
    assert 0 < billed <= cap
    settle(platform, made["key_id"], after=after)


def test_a_revoked_key_is_refused_while_its_streams_end_in_order(platform: Platform) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL])
    platform.set_faults({"model": MODEL, "kind": "chunk_latency", "seconds": 0.5})
    began, revoked = threading.Event(), threading.Event()

    def stream() -> str:
        with httpx.stream(
            "POST",
            f"{platform.endpoints.gateway}/v1/chat/completions",
            headers={"authorization": f"Bearer {made['key']}"},
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "count"}],
                "max_tokens": 200,
                "stream": True,
            },
            timeout=120,
            trust_env=False,
        ) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                began.set()
                if line == "data: [DONE]":
                    return "in order" if revoked.is_set() else "before the key was revoked"
        return "without its end"

    with ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(stream) for _ in range(3)]
        assert began.wait(60)
        with platform.admin() as admin:  # quicker than the command, and the streams are finite
            admin.revoke_key(made["key_id"], "test")
        revoked.set()
        # The policy lease: a guard may serve a revoked key for one second.
        eventually(lambda: platform.call(made["key"]).status_code == 401, "the key is refused", 10)
        assert [platform.call(made["key"]).status_code for _ in range(5)] == [401] * 5
        assert [one.result() for one in streams] == ["in order"] * 3
    settle(platform, made["key_id"], after=after)


def test_a_rolling_restart_under_load_fails_no_request(platform: Platform) -> None:
    after = platform.bill.last_seq()
    made = platform.new_key(models=[MODEL])
    with load(platform, made["key"], callers=3) as seen:
        eventually(lambda: seen["200"] >= 5, "calls go through")
        platform.kubectl("-n", GATEWAY_NAMESPACE, "rollout", "restart", "statefulset/gateway")
        platform.kubectl(
            "-n", GATEWAY_NAMESPACE, "rollout", "status", "statefulset/gateway", "--timeout=480s"
        )
        before = seen["200"]
        eventually(lambda: seen["200"] >= before + 5, "calls go through after")
    print(f"\n  {dict(seen)}")
    assert set(seen) == {"200"}, seen
    settle(platform, made["key_id"], after=after)


def test_a_pod_elsewhere_reaches_neither_postgres_nor_the_admin_port(platform: Platform) -> None:
    image = json.loads(
        platform.kubectl("-n", GATEWAY_NAMESPACE, "get", "statefulset/gateway", "-o", "json")
    )
    guard = next(c for c in image["spec"]["template"]["spec"]["containers"] if c["name"] == "guard")
    code = (
        "import socket\n"
        "def reach(host, port):\n"
        "    try: socket.create_connection((host, port), 4).close(); return 'reached'\n"
        "    except OSError: return 'shut'\n"
        "for host, port in [('kubernetes.default', 443), ('gateway.terrace-gateway', 8080),\n"
        "    ('postgres.terrace-foundation', 5432), ('gateway-admin.terrace-gateway', 8081)]:\n"
        "    print(host, reach(host, port))\n"
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "stranger",
                    "image": guard["image"],
                    "imagePullPolicy": "Never",
                    "command": ["python", "-c", code],
                }
            ],
        },
    }
    platform.kubectl("delete", "pod", "stranger", "--ignore-not-found")
    platform.kubectl("apply", "-f", "-", text=json.dumps(pod))
    try:
        platform.kubectl(
            "wait", "pod/stranger", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s"
        )
        seen = dict(line.split() for line in platform.kubectl("logs", "stranger").splitlines())
    finally:
        platform.kubectl("delete", "pod", "stranger", "--ignore-not-found", "--now")
    assert seen == {
        "kubernetes.default": "reached",
        "gateway.terrace-gateway": "reached",
        "postgres.terrace-foundation": "shut",
        "gateway-admin.terrace-gateway": "shut",
    }


@pytest.mark.parametrize("part", ["kube-apiserver", "kubelet", "containerd", "etcd"])
def test_a_killed_part_is_named_by_status_and_healed_by_up(platform: Platform, part: str) -> None:
    eventually(lambda: terrace("status", expect=None).returncode == 0, "all is well before")
    status = json.loads(terrace("status", "--json").stdout)
    pid = next(p["pid"] for p in status["cluster"]["parts"] if p["name"] == part)
    kill(pid)
    time.sleep(0.5)
    done = terrace("status", expect=6)
    assert f"{part}: ended" in done.stdout
    terrace("up")
    platform.wait_ready()
    made = platform.new_key(models=[MODEL])
    assert platform.call(made["key"]).status_code == 200
