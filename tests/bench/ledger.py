"""Figures of the spool and the ledger: ``.venv-services/bin/python tests/bench/ledger.py``.

1. Attempts opened and closed through the spool, shipped into a real Postgres meanwhile: entries per
   second over the whole time, until the last is committed. Goal: 2,000.
2. How many records share one sync, and how long a group takes.
3. Attempts spooled while Postgres is down, then drained. ``--spooled 120000``.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "service/gateway/rig"))

from gateway_rig.journal_records import close_record, open_record
from gateway_rig.ledger_rig import LedgerRig, ledger_rig
from gateway_rig.postgres import Postgres

CALLERS = 200


class Groups:
    """Counts group commits."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.seconds: list[float] = []

    def group(self, records: int, size: int, seconds: float) -> None:
        self.sizes.append(records)
        self.seconds.append(seconds)

    def refused(self) -> None:
        raise AssertionError("the disk is full")

    def dropped(self, decisions: int) -> None: ...


async def attempts(rig: LedgerRig, count: int) -> None:
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            opened = open_record(incarnation=rig.incarnation)
            await rig.journal.open(opened)
            await rig.journal.close(close_record(opened))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def show(groups: Groups) -> None:
    sizes, seconds = sorted(groups.sizes), sorted(groups.seconds)

    def part(values: list[float] | list[int], share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    print(
        f"  {len(sizes)} syncs; records per sync p50 {part(sizes, 0.5)}, p99 {part(sizes, 0.99)};"
        f" group time p50 {1000 * part(seconds, 0.5):.1f} ms, p99 {1000 * part(seconds, 0.99):.1f}"
    )


async def run(postgres: Postgres, entries: int, spooled: int) -> None:
    with postgres.superuser() as connection:
        connection.execute("CREATE DATABASE bench OWNER gateway")
    with tempfile.TemporaryDirectory(prefix="terrace-spool-") as folder:
        groups = Groups()
        async with ledger_rig(postgres.url("bench"), Path(folder), observer=groups) as rig:
            began = time.perf_counter()
            await attempts(rig, entries)
            spool = time.perf_counter() - began
            await rig.drain(600)
            took = time.perf_counter() - began
            print(f"sustained: {entries / took:,.0f} entries/s committed in Postgres,")
            print(f"  {entries / spool:,.0f} attempts/s through the spool (two records each)")
            show(groups)
            postgres.stop(signal.SIGINT)
            groups.sizes.clear()
            groups.seconds.clear()
            began = time.perf_counter()
            await attempts(rig, spooled)
            took = time.perf_counter() - began
            size = rig.journal.reader.behind_bytes / 2**20
            print(f"database down: {spooled:,} attempts spooled in {took:.0f} s, {size:,.0f} MiB")
            show(groups)
            postgres.start()
            began = time.perf_counter()
            await rig.drain(1200)
            took = time.perf_counter() - began
            count = (await rig.rows("SELECT count(*) FROM ledger_entry"))[0][0]
            assert count == entries + spooled, count
            print(f"drained in {took:.0f} s: {spooled / took:,.0f} entries/s, none lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--spooled", type=int, default=120_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="terrace-postgres-") as folder:
        postgres = Postgres(Path(folder))
        postgres.create()
        try:
            asyncio.run(run(postgres, arguments.entries, arguments.spooled))
        finally:
            postgres.stop()


if __name__ == "__main__":
    main()
