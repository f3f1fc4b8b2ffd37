"""What the gateway's ways upstream cost, side by side in one run, as ratios.

``.venv-services/bin/python tests/bench/gateway_overhead.py [--seconds S] [--peer NAME=URL@PID]``

Subjects, each a process of its own before the same provider: a raw relay (Starlette and aiohttp,
what a team writes in an afternoon), our relay (server, dispatch, bulkhead, relay, usage scan), bare
LiteLLM, and our translator. ``--guard`` puts the whole guard before relay and translator.
CPU is the subject's own (user and system time of the process); the provider's and the client's do
not count. Rounds of the subjects take turns, so that a busy machine is busy for all of them.
It prints and asserts nothing.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gateway_load.figures import report
from gateway_load.load import Load, Round
from gateway_load.subjects import Subject, all_subjects, peer

SHAPES = ("plain", "stream")
CALLERS = (1, 8)
LONG = 1000


async def main(arguments: argparse.Namespace) -> None:
    """Start everything, take turns, print."""
    with tempfile.TemporaryDirectory(prefix="terrace-bench-") as folder:
        peers = [peer(text) for text in arguments.peer]
        async with all_subjects(Path(folder), guard=arguments.guard, peers=peers) as subjects:
            rounds: list[Round] = []
            able = {subject.name: await _shapes(subject, subject in peers) for subject in subjects}
            for _ in range(arguments.rounds):
                for shape in SHAPES:
                    for callers in CALLERS:
                        for subject in subjects:
                            if shape in able[subject.name]:
                                rounds.append(
                                    await Load(subject).run(
                                        shape, callers=callers, seconds=arguments.seconds
                                    )
                                )
                for subject in subjects:
                    if "stream" in able[subject.name]:
                        rounds.append(await Load(subject).long_stream(LONG, calls=_long(subject)))
            print(report(rounds))
            print("load of the machine: {:.0f}, {:.0f}, {:.0f}".format(*os.getloadavg()))


async def _shapes(subject: Subject, is_peer: bool) -> tuple[str, ...]:
    """Warm up; a peer is measured by what it can do here, ours must do everything."""
    able: list[str] = []
    for shape in SHAPES:
        try:
            await Load(subject).warm_up(shape)
        except RuntimeError as error:
            if not is_peer:
                raise
            print(f"left out: {subject.name}, {shape}: {error}")
        else:
            able.append(shape)
    return tuple(able)


def _long(subject: Subject) -> int:
    return 2 if subject.slow else 10


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--guard", action="store_true", help="the whole guard as well (Postgres)")
    parser.add_argument("--peer", action="append", default=[], help="NAME=URL@PID[@header:value]")
    asyncio.run(main(parser.parse_args()))
