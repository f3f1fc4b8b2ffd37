"""The order of `up`: look first, then change; what can overlap overlaps; what fails is said."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from terrace_cli import platform_up
from terrace_cli.errors import CliError, NotRunningError, NotUpInTimeError
from terrace_cli.kubernetes_api import WorkloadState
from terrace_cli.output import Progress
from terrace_local import cluster, images, toolchain
from terrace_local.cluster import HeldByAnother, Problem

from .conftest import Invoke
from .fake_pulumi import FakePulumi


@pytest.fixture
def gateway() -> Iterator[SimpleNamespace]:
    """Answers /readyz with 503 as often as `not_ready` says, then 200."""
    state = SimpleNamespace(not_ready=0, url="")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            state.not_ready -= 1
            self.send_response(503 if state.not_ready >= 0 else 200)
            self.end_headers()
            self.wfile.write(b'{"database": "away"}')

    server = HTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def machine(
    clone: Path, tmp_path: Path, gateway: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """terrace_local replaced by recordings; pulumi by a stand-in."""
    pulumi = FakePulumi(tmp_path / "pulumi")
    outputs = {
        f"{name}_url": gateway.url for name in ("gateway", "admin", "prometheus", "simulator")
    }
    pulumi.plan({"stack": {"out": json.dumps(outputs)}})
    state = SimpleNamespace(
        done=[],
        problems=[],
        pulumi=pulumi,
        status=cluster.ClusterStatus("absent"),
        up=None,
        build=None,
        workloads=[],
    )
    tools = SimpleNamespace(bin_dir=pulumi.bin_directory)
    image = SimpleNamespace(
        ref="terrace.local/gateway:0", archive=tmp_path / "a.tar", name="gateway"
    )

    def note(name: str, result: Any = None) -> Any:
        state.done.append(name)
        return result

    def up(bin_dir: Path, *, clone: Path, progress: Any) -> None:
        del bin_dir, clone, progress
        note("cluster")
        if state.up:
            state.up()

    def ensure_images(names: Any, *, progress: Any, stop: threading.Event) -> Any:
        del names, progress
        note("images")
        if state.build:
            state.build(stop)
        return {"gateway": image}

    class Api:
        """Says or raises once each what `workloads` holds, then that all is well."""

        def __enter__(self) -> "Api":
            return self

        def __exit__(self, *_: object) -> None: ...

        def workloads(self, namespaces: tuple[str, ...]) -> list[WorkloadState]:
            assert "terrace-gateway" in namespaces
            said = state.workloads.pop(0) if state.workloads else None
            if isinstance(said, Exception):
                raise said
            return [said] if said else []

        def pod_troubles(self, namespaces: tuple[str, ...]) -> list[str]:
            del namespaces
            return ["container guard waits: CrashLoopBackOff"]

    monkeypatch.setattr(platform_up, "KubernetesApi", Api)
    monkeypatch.setattr(platform_up, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "preflight", lambda _: note("preflight", state.problems))
    monkeypatch.setattr(cluster, "status", lambda: state.status)
    monkeypatch.setattr(cluster, "up", up)
    monkeypatch.setattr(cluster, "write_substrate", lambda refs: note(f"substrate {refs}"))
    monkeypatch.setattr(toolchain, "ensure_debian_packages", lambda **_: note("packages"))
    monkeypatch.setattr(toolchain, "ensure", lambda stage, **_: note("toolchain", tools))
    monkeypatch.setattr(images, "ensure_images", ensure_images)
    monkeypatch.setattr(images, "load_images", lambda *_, **__: note("load"))
    return state


def test_up_does_everything_in_order_and_says_where_it_stands(
    invoke: Invoke, machine: SimpleNamespace, clone: Path, gateway: SimpleNamespace
) -> None:
    gateway.not_ready = 2
    outcome = invoke("up")
    assert outcome.code == 0, outcome.err
    assert machine.done[:3] == ["preflight", "packages", "toolchain"]
    assert set(machine.done[3:5]) == {"cluster", "images"}
    assert machine.done[5:] == ["load", "substrate {'gateway': 'terrace.local/gateway:0'}"]
    assert [call[0] for call in machine.pulumi.asked()] == ["stack", "up", "stack"]
    assert json.loads((clone / ".terrace/endpoints.json").read_text())["gateway"] == gateway.url
    assert gateway.url in outcome.out
    for part in ("toolchain", "cluster", "images", "pulumi up", "gateway ready"):
        assert part in outcome.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("4", "Stages are 1, 2 and 3"),
        ("0", "Stages are 1, 2 and 3"),
        ("2", "not built yet"),
        ("3", "not built yet"),
        ("x", "x"),
    ],
)
def test_a_stage_that_is_not_there_changes_nothing(
    invoke: Invoke, machine: SimpleNamespace, stage: str, said: str
) -> None:
    outcome = invoke("up", "--stage", stage)
    assert outcome.code == 2
    assert said in outcome.err
    assert machine.done == []


@pytest.mark.parametrize(
    ("settings", "arguments", "said"),
    [
        ('terrace:stage: "2"', (), "stage 2 is not built yet in this release"),
        ("terrace:stage: 3", (), "stage 3 is not built yet in this release"),
        ("terrace:stage: one", (), "'one' is no stage"),
        ("terrace:stgae: 1", (), "did you mean 'terrace:stage'?"),
        ("terrace:stgae: 1", ("--stage", "1"), "unknown key 'terrace:stgae'"),
        ("terrace:substrate: aws", (), "use `terrace up --stack NAME`"),
        ("terrace:substrate: existing", (), "use `terrace up --stack NAME`"),
        ("terrace:substrate: awss", (), "did you mean 'aws'?"),
        ("terrace:otlpEndpoint: true", (), "terrace:otlpEndpoint"),
        ("terrace:governanceFile: gone.yaml", (), "terrace:governanceFile: cannot read"),
        ("[", (), "is not a Pulumi settings file"),
    ],
)
def test_settings_that_are_wrong_change_nothing(
    *,
    invoke: Invoke,
    machine: SimpleNamespace,
    clone: Path,
    settings: str,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    text = f"# kept\nconfig:\n  {settings}\n"
    (clone / "Pulumi.local.yaml").write_text(text)
    outcome = invoke("up", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert machine.done == ["preflight"]  # it only looks
    assert machine.pulumi.asked() == []
    assert (clone / "Pulumi.local.yaml").read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "config:\n  other:key: 3\n",
        "config:\n  terrace:stage: 1\n",
        "config:\n  terrace:otlpEndpoint:\n    secure: v1:abc\n",
    ],
)
def test_without_a_stage_asked_for_the_settings_are_only_read(
    invoke: Invoke, machine: SimpleNamespace, clone: Path, text: str
) -> None:
    (clone / "Pulumi.local.yaml").write_text(text)
    outcome = invoke("up")
    assert outcome.code == 0, outcome.err
    assert "Stage 1 stands" in outcome.out
    assert [call[0] for call in machine.pulumi.asked()] == ["stack", "up", "stack"]
    assert (clone / "Pulumi.local.yaml").read_text() == text


def test_another_stage_that_is_asked_for_is_set_once_the_cluster_stands(
    invoke: Invoke, machine: SimpleNamespace, clone: Path
) -> None:
    (clone / "Pulumi.local.yaml").write_text('config:\n  terrace:stage: "2"\n')
    outcome = invoke("up", "--stage", "1")
    assert outcome.code == 0, outcome.err
    assert ["config", "set", "--stack", "local", "terrace:stage", "1"] in machine.pulumi.asked()


def test_settings_that_cannot_be_checked_are_said(
    invoke: Invoke, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    outcome = invoke("up")
    assert outcome.code == 1
    assert "could not be checked" in outcome.err
    assert machine.done == ["preflight"]  # it only looks


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("containerd does not answer; run `terrace up` first", "containerd stopped during `up`"),
        ("there is no cluster on this machine", "the cluster stopped during `up`"),
    ],
)
def test_a_cluster_that_somebody_else_stops_meanwhile_is_said(
    *,
    invoke: Invoke,
    machine: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: str,
    said: str,
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise cluster.NotRunning(raised)

    monkeypatch.setattr(images, "load_images", stopped)
    outcome = invoke("up")
    assert outcome.code == 6
    assert f"{said} (stopped by another process?); see {tmp_path}/state/log" in outcome.err
    assert "run `terrace up` again" in outcome.err
    assert "first" not in outcome.err
    assert machine.pulumi.asked() == []


def test_a_machine_that_lacks_something_is_not_touched(
    invoke: Invoke, machine: SimpleNamespace
) -> None:
    machine.problems = [
        Problem("port", "10.89.0.1:6443 is in use by nginx"),
        Problem("rights", "x"),
    ]
    outcome = invoke("up")
    assert outcome.code == 3
    assert "in use by nginx" in outcome.err
    assert machine.done == ["preflight"]
    assert machine.pulumi.asked() == []


def test_what_up_itself_brings_is_no_reason_to_refuse(
    invoke: Invoke, machine: SimpleNamespace
) -> None:
    machine.problems = [Problem("program", "`runc` is not installed"), Problem("toolchain", "x")]
    assert invoke("up").code == 0


def test_another_clones_cluster_is_refused_before_anything_is_built(
    invoke: Invoke, machine: SimpleNamespace
) -> None:
    machine.status = cluster.ClusterStatus(
        "running", holder="the clone at /elsewhere", holder_clone=Path("/elsewhere")
    )
    outcome = invoke("up")
    assert outcome.code == 4
    assert "/elsewhere" in outcome.err
    assert machine.done == ["preflight"]


def test_cluster_and_images_overlap(invoke: Invoke, machine: SimpleNamespace) -> None:
    both = threading.Barrier(2, timeout=20)
    machine.up = both.wait
    machine.build = lambda _: both.wait()
    assert invoke("up").code == 0


def test_a_cluster_that_fails_stops_the_image_builds(
    invoke: Invoke, machine: SimpleNamespace
) -> None:
    building, stopped = threading.Event(), threading.Event()

    def fail() -> None:
        building.wait(20)
        raise HeldByAnother("somebody else has it")

    def build(stop: threading.Event) -> None:
        building.set()
        if stop.wait(20):
            stopped.set()

    machine.up, machine.build = fail, build
    outcome = invoke("up")
    assert outcome.code == 4
    assert "somebody else has it" in outcome.err
    assert stopped.wait(20)
    assert machine.pulumi.asked() == []


def test_a_stack_without_its_outputs_is_said(invoke: Invoke, machine: SimpleNamespace) -> None:
    machine.pulumi.plan({"stack": {"out": '{"gateway_url": "http://g"}'}})
    outcome = invoke("up")
    assert outcome.code == 1
    assert "admin_url" in outcome.err
    assert "unexpected" not in outcome.err


def test_a_gateway_that_never_gets_ready_is_code_5_with_its_own_words(
    clone: Path, gateway: SimpleNamespace
) -> None:
    del clone
    gateway.not_ready = 10**6
    with pytest.raises(NotUpInTimeError, match="database"):
        platform_up.wait_until_ready(gateway.url, Progress(), seconds=0.2)
    with pytest.raises(NotUpInTimeError, match="no answer"):
        platform_up.wait_until_ready("http://127.0.0.1:9", Progress(), seconds=0.2)


def rolling(ready: int) -> WorkloadState:
    return WorkloadState(
        kind="StatefulSet", namespace="n", name="gateway", wanted=2, ready=ready, rolling=True
    )


def test_up_ends_when_the_replicas_are_the_new_ones(
    invoke: Invoke, machine: SimpleNamespace
) -> None:
    machine.workloads = [rolling(2), rolling(1), rolling(1)]
    outcome = invoke("up")
    assert outcome.code == 0, outcome.err
    assert machine.workloads == []
    said = [line for line in outcome.err.splitlines() if "workloads: " in line]
    assert [line.partition("workloads: ")[2] for line in said] == [
        "n/gateway 2 of 2 ready, rolling",
        "n/gateway 1 of 2 ready, rolling",
    ]


@pytest.mark.usefixtures("machine")
def test_a_roll_that_never_ends_says_why(machine: SimpleNamespace) -> None:
    machine.workloads = [rolling(1)] * 1000
    with pytest.raises(NotUpInTimeError, match="1 of 2 ready, rolling\ncontainer guard waits"):
        platform_up.wait_until_rolled(Progress(), seconds=0)


def test_an_api_server_that_is_silent_for_a_moment_ends_no_up(
    invoke: Invoke, machine: SimpleNamespace
) -> None:
    machine.workloads = [rolling(2), *[NotRunningError("does not answer")] * 3, rolling(1)]
    outcome = invoke("up")
    assert outcome.code == 0, outcome.err
    assert "workloads: does not answer" in outcome.err


@pytest.mark.parametrize(
    ("error", "kind"), [(NotRunningError("silent"), NotRunningError), (CliError("no"), CliError)]
)
def test_an_api_server_that_is_silent_for_long_or_refuses_ends_the_wait(
    machine: SimpleNamespace, error: Exception, kind: type[Exception]
) -> None:
    machine.workloads = [error] * 1000
    with pytest.raises(kind, match=str(error)):
        platform_up.wait_until_rolled(Progress(), silence=0.1)
    assert len(machine.workloads) > 900


def test_a_second_up_waits_for_the_first(
    invoke: Invoke, machine: SimpleNamespace, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl
    import os

    descriptor = os.open(clone, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    real, waits = fcntl.flock, threading.Event()

    def flock(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            waits.set()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)

    def release() -> None:
        waits.wait(60)
        machine.done.append("first is done")
        os.close(descriptor)

    releasing = threading.Thread(target=release)
    releasing.start()
    outcome = invoke("up")
    releasing.join()
    assert outcome.code == 0
    assert "waiting" in outcome.err
    assert machine.done[0] == "first is done"
