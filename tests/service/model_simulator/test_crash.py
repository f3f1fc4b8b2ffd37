"""kill -9 at any moment: every call that got a byte is billed, once, and has an end."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest


def body(text: str, *, stream: bool = True) -> dict[str, Any]:
    return {
        "model": "sim-small",
        "stream": stream,
        "messages": [{"role": "user", "content": text}],
    }


@pytest.mark.parametrize("chunks", [0, 1, 20])
def test_a_killed_stream_is_billed_with_the_last_checkpoint(
    start_simulator: Callable[..., Any], chunks: int
) -> None:
    simulator = start_simulator(checkpoint_chunks=4)
    simulator.faults({"kind": "chunk_latency", "seconds": 0.02})
    received = ""
    with simulator.http.stream(
        "POST",
        "/v1/chat/completions",
        json=body("[[tokens=4000]]"),
        headers={"x-terrace-attempt-id": "killed"},
    ) as answer:
        lines = answer.iter_lines()
        while received.count('"content":') < 1 + chunks:
            received += next(lines)
        simulator.process.kill()
        with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012  what was sent comes first
            for line in lines:
                received += line
    simulator.end()
    got = 4 * (received.count('"content":') - 1)

    simulator.start()
    (entry,) = simulator.bill("killed")["entries"]
    assert (entry["status"], entry["outcome"]) == ("final", "failed_after_start")
    # Checkpoints are every 16 tokens, and one may still have been on its way to the file.
    assert got - 32 <= entry["output_tokens"] <= got + 4
    assert entry["output_tokens"] % 16 == 0
    assert entry["cost_micro_usd"] > 0
    assert simulator.bill()["in_flight"] == 0
    assert simulator.chat("and on it goes").status_code == 200


def test_no_answer_without_an_entry_whenever_it_is_killed(
    start_simulator: Callable[..., Any],
) -> None:
    """Callers from many threads, four kills; the book against what the callers saw."""
    simulator = start_simulator()
    finished: dict[str, int] = {}
    begun: set[str] = set()
    lock = threading.Lock()
    stop = threading.Event()

    def call(worker: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"{worker}-{number}"
            try:
                with (
                    httpx.Client(base_url=simulator.url, timeout=10) as client,
                    client.stream(
                        "POST",
                        "/v1/chat/completions",
                        json={**body(f"q {name}"), "stream_options": {"include_usage": True}},
                        headers={
                            "x-terrace-attempt-id": name,
                            "authorization": simulator.http.headers["authorization"],
                        },
                    ) as answer,
                ):
                    with lock:
                        begun.add(name)
                    lines = [line for line in answer.iter_lines() if line]
            except (httpx.HTTPError, RuntimeError):
                continue
            usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
            with lock:
                finished[name] = usage["completion_tokens"]

    workers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    rng = random.Random(7)
    for _ in range(4):
        enough = len(finished) + 20
        deadline = time.monotonic() + 60
        while len(finished) < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.random() / 20)
        simulator.process.kill()
        simulator.end()
        simulator.start()
    stop.set()
    for worker in workers:
        worker.join()

    bill = simulator.bill()
    entries = {entry["attempt_id"]: entry for entry in bill["entries"]}
    assert len(finished) >= 80
    assert len(entries) == len(bill["entries"])
    assert begun <= set(entries)
    assert {name: entries[name]["output_tokens"] for name in finished} == finished
    assert all(entries[name]["outcome"] == "ok" for name in finished)
    assert bill["in_flight"] == 0
    assert bill["total_micro_usd"] == sum(e["cost_micro_usd"] for e in bill["entries"])


def test_a_torn_last_line_is_tolerated(start_simulator: Callable[..., Any]) -> None:
    simulator = start_simulator()
    simulator.chat("x", attempt="before")
    before = simulator.bill()
    simulator.end(signal.SIGKILL)
    with simulator.bill_path.open("ab") as file:
        file.write(b'{"record":"open","seq":2,"attempt_id":"torn","mo')
    simulator.start()
    assert simulator.bill() == before
    simulator.chat("x", attempt="after")
    assert [e["attempt_id"] for e in simulator.bill()["entries"]] == ["before", "after"]


def test_sigterm_lets_a_stream_end(start_simulator: Callable[..., Any]) -> None:
    simulator = start_simulator()
    simulator.faults({"kind": "chunk_latency", "seconds": 0.05})
    with simulator.http.stream(
        "POST",
        "/v1/chat/completions",
        json=body("[[tokens=40]]"),
        headers={"x-terrace-attempt-id": "polite"},
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        simulator.process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert simulator.end() in {0, -signal.SIGTERM}
    simulator.start()
    (entry,) = simulator.bill("polite")["entries"]
    assert (entry["outcome"], entry["output_tokens"]) == ("ok", 40)


def test_sigterm_cuts_what_outlives_the_grace(start_simulator: Callable[..., Any]) -> None:
    simulator = start_simulator(shutdown_grace_seconds=1)
    simulator.faults({"kind": "latency", "seconds": 600, "remaining": 1}, {"kind": "hang"})
    host, port = simulator.url.removeprefix("http://").split(":")
    callers = []
    for name in ("late", "hung"):
        data = json.dumps(body("x")).encode()
        caller = socket.create_connection((host, int(port)))
        caller.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-terrace-attempt-id: {name}\r\n"
            f"authorization: {simulator.http.headers['authorization']}\r\n"
            f"content-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        callers.append(caller)
        if name == "late":
            # A hang switch would swallow it: it goes first, alone with its own switch.
            simulator.faults({"kind": "hang"})
    simulator.end()
    for caller in callers:
        caller.close()
    assert b"hung" not in simulator.bill_path.read_bytes()
    records = [json.loads(line) for line in simulator.bill_path.read_text().splitlines()]
    opened = {r["seq"] for r in records if r["record"] == "open"}
    assert opened == {r["seq"] for r in records if r["record"] == "close"}


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("BILL_PATH", "/proc/nowhere/bill.jsonl", "/proc/nowhere"),
        ("PRICES_FILE", "/nowhere/prices.yaml", "/nowhere/prices.yaml"),
        ("CREDENTIALS_DIR", "/nowhere", "/nowhere/simulator-api-key"),
        ("PORT", "many", "port"),
    ],
)
def test_a_wrong_setting_is_named_without_a_traceback(
    start_simulator: Callable[..., Any], tmp_path: Path, setting: str, value: str, named: str
) -> None:
    simulator = start_simulator()
    simulator.end()
    environment = {**simulator.environment, f"TERRACE_SIMULATOR_{setting}": value}
    done = subprocess.run(
        [sys.executable, "-m", "terrace_model_simulator"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert tmp_path.exists()


def test_a_second_process_on_the_same_bill_is_refused(start_simulator: Callable[..., Any]) -> None:
    simulator = start_simulator()
    done = subprocess.run(
        [sys.executable, "-m", "terrace_model_simulator"],
        env=simulator.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "another process writes this bill" in done.stderr
    assert simulator.chat("x").status_code == 200
