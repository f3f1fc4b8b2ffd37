"""A full disk: no call is served unbilled, running calls are closed, room brings service back."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest


def fill_until_refused(simulator: Any) -> int:
    """Call until the book takes no more; returns how many calls were served."""
    for served in range(5000):
        answer = simulator.chat("[[tokens=4]]", metadata={"padding": "x" * 500})
        if answer.status_code != 200:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "bill_unavailable"
            return served
    pytest.fail("the disk never became full")


def refused_everywhere(simulator: Any) -> bool:
    converse = simulator.http.post(
        "/model/anthropic.claude-sonnet-4-5-20250929-v1:0/converse",
        json={"messages": [{"role": "user", "content": [{"text": "x"}]}],
              "requestMetadata": {"padding": "x" * 200}},
    )  # fmt: skip
    return (
        converse.status_code == 503
        and converse.headers["x-amzn-errortype"] == "ServiceUnavailableException"
        and simulator.chat("x", stream=True, metadata={"p": "x" * 500}).status_code == 503
    )


def test_a_file_size_limit(start_simulator: Callable[..., Any]) -> None:
    """RLIMIT_FSIZE: the bill itself can grow no more, and there is no reserve for that."""
    simulator = start_simulator(("prlimit", f"--fsize={64 * 1024}"), bill_reserve_bytes=4096)
    served = fill_until_refused(simulator)
    assert refused_everywhere(simulator)
    bill = simulator.bill()
    assert served <= len(bill["entries"])
    assert simulator.http.get("/healthz").status_code == 200
    simulator.end()
    simulator.start()
    assert len(simulator.bill()["entries"]) == len(bill["entries"])


def limit_file_size(simulator: Any, limit: str) -> None:
    """Change the running process's soft limit on the size of a file."""
    pid = str(simulator.process.pid)
    subprocess.run(["prlimit", "--pid", pid, f"--fsize={limit}:unlimited"], check=True)


@pytest.mark.parametrize("restart", [False, True])
def test_a_call_whose_close_does_not_fit_is_broken_off_not_finished(
    start_simulator: Callable[..., Any], restart: bool
) -> None:
    simulator = start_simulator(bill_reserve_bytes=4096)
    simulator.faults({"kind": "chunk_latency", "seconds": 4, "remaining": 1})
    with simulator.http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": "sim-small",
            "stream": True,
            "messages": [{"role": "user", "content": "[[tokens=8]]"}],
        },
        headers={"x-terrace-attempt-id": "unclosable"},
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        limit_file_size(simulator, str(simulator.bill_path.stat().st_size))
        assert simulator.chat("x").status_code == 503
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    (entry,) = simulator.bill("unclosable")["entries"]
    assert (entry["status"], entry["output_tokens"]) == ("in_flight", 8)
    if restart:
        simulator.end(signal.SIGKILL)
        simulator.start()
    else:
        limit_file_size(simulator, "unlimited")
    deadline = time.monotonic() + 30
    while simulator.bill("unclosable")["in_flight"]:
        assert time.monotonic() < deadline
    (entry,) = simulator.bill("unclosable")["entries"]
    assert (entry["status"], entry["outcome"]) == ("final", "failed_after_start")
    assert entry["output_tokens"] == (0 if restart else 8)
    assert simulator.chat("x").status_code == 200


def test_a_full_volume(start_simulator: Callable[..., Any], tmp_path: Path) -> None:
    """A volume of 512 KiB that only the simulator's own mount namespace has."""
    volume = tmp_path / "volume"
    volume.mkdir()
    script = 'mount -t tmpfs -o size=512k tmpfs "$0" && exec "$@"'
    simulator = start_simulator(
        ("unshare", "--mount", "--map-root-user", "sh", "-c", script, str(volume)),
        bill_reserve_bytes=64 * 1024,
    )
    # The process's own view of its volume.
    inside = Path(f"/proc/{simulator.process.pid}/root") / volume.relative_to("/")
    simulator.faults({"kind": "chunk_latency", "seconds": 2, "remaining": 3})
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                simulator.http.stream(
                    "POST",
                    "/v1/chat/completions",
                    json={
                        "model": "sim-small",
                        "stream": True,
                        "messages": [{"role": "user", "content": "[[tokens=8]]"}],
                    },
                    headers={"x-terrace-attempt-id": f"running-{number}"},
                )
            )
            for number in range(3)
        ]
        ballast = inside / "somebody-elses-file"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        fill_until_refused(simulator)
        assert refused_everywhere(simulator)
        for answer in running:
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
    bill = simulator.bill()
    assert bill["in_flight"] == 0
    outcomes = {e["attempt_id"]: e["outcome"] for e in bill["entries"] if e["attempt_id"]}
    assert outcomes == {f"running-{number}": "ok" for number in range(3)}
    assert refused_everywhere(simulator)

    ballast.unlink()
    deadline = time.monotonic() + 30
    while simulator.chat("room again").status_code != 200:
        assert time.monotonic() < deadline
    assert len(simulator.bill()["entries"]) == len(bill["entries"]) + 1
