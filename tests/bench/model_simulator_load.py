"""What the simulator costs per call, so that benchmarks of the gateway know what is not theirs.

``python tests/bench/model_simulator_load.py [--calls N] [--callers N]`` prints, for each kind of
call, calls per second and the simulator process's own CPU milliseconds per call. It measures and
asserts nothing. A bare health check of the same server, in the same run, is the yardstick.
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

KEY = "sk-bench"
CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def start(directory: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a simulator on a free port; returns it and its address."""
    for name in ("simulator-api-key", "aws-access-key-id", "aws-secret-access-key"):
        (directory / name).write_text(KEY)
    process = subprocess.Popen(
        [sys.executable, "-m", "terrace_model_simulator"],
        env={
            **os.environ,
            "TERRACE_SIMULATOR_HOST": "127.0.0.1",
            "TERRACE_SIMULATOR_PORT": "0",
            "TERRACE_SIMULATOR_CREDENTIALS_DIR": str(directory),
            "TERRACE_SIMULATOR_BILL_PATH": str(directory / "bill.jsonl"),
        },
        stdout=(directory / "log").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None:
        found = re.search(r"running on (http://[0-9.:]+)", (directory / "log").read_text())
        if found:
            return process, found[1]
        time.sleep(0.05)
    sys.exit((directory / "log").read_text())


async def measure(
    name: str, one: Callable[[], Awaitable[None]], *, calls: int, callers: int, pid: int
) -> None:
    """Run ``calls`` calls from ``callers`` callers and print one line."""
    left = calls

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    cpu, began = cpu_seconds(pid), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu
    print(f"{name:<34} {calls / seconds:8.0f} calls/s  {1000 * cpu / calls:6.2f} CPU ms per call")


async def run(url: str, pid: int, calls: int, callers: int) -> None:
    """All kinds of calls, one after the other."""
    text = "hello [[tokens=80]]"
    chat = {"model": "sim-small", "messages": [{"role": "user", "content": text}]}
    converse = {"messages": [{"role": "user", "content": [{"text": text}]}]}
    async with aiohttp.ClientSession(
        headers={"authorization": f"Bearer {KEY}"},
        connector=aiohttp.TCPConnector(limit=callers),
    ) as session:

        def post(path: str, body: object) -> Callable[[], Awaitable[None]]:
            async def one() -> None:
                async with session.post(url + path, json=body) as answer:
                    await answer.read()
                    answer.raise_for_status()

            return one

        async def health() -> None:
            async with session.get(f"{url}/healthz") as answer:
                await answer.read()

        for name, one in (
            ("health check (yardstick)", health),
            ("chat, plain, 80 tokens", post("/v1/chat/completions", chat)),
            ("chat, stream of 20 chunks", post("/v1/chat/completions", {**chat, "stream": True})),
            ("converse, bearer, 80 tokens", post(f"/model/{CLAUDE}/converse", converse)),
            ("converse-stream of 20 chunks", post(f"/model/{CLAUDE}/converse-stream", converse)),
        ):
            await one()
            await measure(name, one, calls=calls, callers=callers, pid=pid)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--callers", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        process, url = start(Path(name))
        try:
            asyncio.run(run(url, process.pid, options.calls, options.callers))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
