"""Memory of one replica over many calls: resident set by 10,000 calls, and its slope.

``.venv-services/bin/python tests/bench/soak.py [--calls N] [--callers C] [--step N]``

The whole guard with a real Postgres, before a provider of canned answers (nine plain calls and a
stream in ten); a stand-in answers the translator's health probe. The slope is a least-squares line
through the marks behind the first one: that one holds imports, pools and caches that fill once.
It prints and asserts nothing.
"""

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import linear_regression

import aiohttp

sys.path.insert(0, str(Path(__file__).parent))

from gateway_load.guard import guards
from gateway_load.load import Load
from gateway_load.subjects import HERE, Subject, free_port


async def main(arguments: argparse.Namespace) -> None:
    """Start everything, call, print."""
    with tempfile.TemporaryDirectory(prefix="terrace-soak-") as name:
        folder = Path(name)
        engine = folder / "engine"
        engine.mkdir()
        (engine / "ready").touch()
        (engine / "master-key").write_text("k")
        port = free_port()
        places = (str(port), str(engine / "engine.sock"))
        started = [
            subprocess.Popen([sys.executable, str(HERE / "provider.py"), place]) for place in places
        ]
        try:
            await asyncio.sleep(1)
            async with guards(folder, f"http://127.0.0.1:{port}/v1", 0) as subjects:
                await soak(subjects[0], arguments)
        finally:
            for process in started:
                process.terminate()


async def soak(subject: Subject, arguments: argparse.Namespace) -> None:
    """Calls in steps; the resident set between them."""
    load, marks = Load(subject), list[tuple[int, float]]()
    begun, cpu = time.perf_counter(), subject.cpu_seconds()
    print("calls    resident MiB  calls/s  CPU ms/call")
    for done in range(arguments.step, arguments.calls + 1, arguments.step):
        await step(load, arguments.callers, itertools.count(1), arguments.step)
        await asyncio.sleep(1)  # what is shipped in batches is shipped
        marks.append((done, resident_mib(subject.pids[0])))
        took, used = time.perf_counter() - begun, subject.cpu_seconds() - cpu
        print(
            f"{done:7} {marks[-1][1]:13.2f} {arguments.step / took:8.0f}"
            f" {used / arguments.step * 1000:12.3f}",
            flush=True,
        )
        begun, cpu = time.perf_counter(), subject.cpu_seconds()
    if len(marks) > 2:
        slope = linear_regression(*zip(*marks[1:], strict=True)).slope
        print(f"slope behind the first mark: {slope * 1024 * 1024:.1f} bytes per call")


async def step(load: Load, callers: int, numbers: Iterator[int], last: int) -> None:
    """So many calls by so many callers."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def caller() -> None:
            while (number := next(numbers)) <= last:
                await load.call(session, "plain" if number % 10 else "stream", 20)

        await asyncio.gather(*(caller() for _ in range(callers)))


def resident_mib(pid: int) -> float:
    """Of the process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no such process")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--step", type=int, default=10_000)
    asyncio.run(main(parser.parse_args()))
