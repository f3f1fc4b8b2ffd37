"""kill -9 at every crash point of spool, shipper and ledger: the books hold (proof 2, its part).

Each kill leaves what the next process finds, which is killed at the next point: also while it
mends what the one before left. The provider keeps its own books.
"""

import asyncio
import os
import random
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from gateway_rig.crash_child import FileBill, run
from gateway_rig.crash_guard import ended, fork
from gateway_rig.ledger_rig import open_database
from gateway_rig.postgres import Postgres

import terrace_gateway
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.chains.verify import LedgerVerifier
from terrace_gateway.ledger.object_store import DirectoryObjects

ROOMS = ("spool", "ledger")
LANES = 3
PACKAGE = Path(terrace_gateway.__file__).parent


def crash_points() -> list[str]:
    """All names in the code of the two rooms."""
    found = {
        name
        for room in ROOMS
        for path in (PACKAGE / room).glob("*.py")
        for name in re.findall(r'reach\("([^"]+)"\)', path.read_text())
    }
    return sorted(found)


@dataclass(frozen=True)
class Replica:
    """Its processes, one after the other on one spool."""

    url: str
    folder: Path
    name: str

    async def run(self, mode: str, crash_at: str | None = None, seed: int = 0) -> int:
        """One process; its exit code."""
        environment = {"PATH": os.environ["PATH"]}
        if crash_at is not None:
            environment["TERRACE_CRASH_AT"] = crash_at
        process = fork(
            run, self.folder / f"{self.name}.log", environment,
            self.url, self.folder, mode, self.name, seed,
        )  # fmt: skip
        return await ended(process, 120)

    async def kill_at(self, point: str, seed: int) -> None:
        if point.startswith("recovery.") or point == "shipper.before-close-incarnation":
            # These need something that a dead process left open.
            assert await self.run("traffic", "spool.after-sync:25", seed) == -signal.SIGKILL
        room = point.partition(".")[0]
        often = {"spool": [1, 2, 7], "journal": [1, 2, 7], "shipper": [1, 2]}
        once = "segment" in point or point == "shipper.before-close-incarnation"
        counts = [1] if once else often.get(room, [1])
        times = random.Random(seed).choice(counts)
        assert await self.run("traffic", f"{point}:{times}", seed) == -signal.SIGKILL, point


async def test_kills_at_every_point_leave_one_entry_per_billed_attempt(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    url = postgres.url(database)
    points = crash_points()
    assert len(points) >= 20
    random.Random(5).shuffle(points)
    # One reaper takes what another looks for: these not side by side.
    alone = [point for point in points if point.startswith(("reaper.", "reconcile."))]
    beside = [point for point in points if point not in alone]
    replicas = [Replica(url, tmp_path, f"gateway-{number}") for number in range(LANES)]

    async def lane(replica: Replica, names: list[str]) -> None:
        for name in names:
            await replica.kill_at(name, crc32(name.encode()))

    async with asyncio.TaskGroup() as group:
        for number, replica in enumerate(replicas):
            group.create_task(lane(replica, beside[number::LANES]))
    await lane(replicas[0], alone)
    for replica in replicas:
        assert await replica.run("ship") == 0
    bill = FileBill(tmp_path / "bill.jsonl").read()
    assert len(bill) > 100
    async with open_database(url) as pool:

        async def ledger() -> dict[str, tuple[int, int]]:
            """Attempt -> closes that count, and money."""
            async with pool.connection() as connection:
                cursor = await connection.execute(
                    "SELECT attempt_id, count(*) FILTER (WHERE kind <> 'correction'),"
                    " sum(amount_micro_usd)::bigint FROM ledger_entry"
                    " WHERE attempt_id IS NOT NULL AND NOT late GROUP BY 1"
                )
                return {row[0]: (row[1], row[2]) for row in await cursor.fetchall()}

        entries = await ledger()
        late = [name for name in bill if name not in entries]
        assert late == []
        assert {closes for closes, _ in entries.values()} == {1}
        below = {n: (entries[n][1], paid) for n, (_, paid) in bill.items() if entries[n][1] < paid}
        assert below == {}
        assert await replicas[0].run("reconcile") == 0
        after = await ledger()
        assert {closes for closes, _ in after.values()} == {1}
        paid = {name: money for name, (_, money) in after.items() if money}
        assert paid == {name: amount for name, (_, amount) in bill.items()}
        anchors = AnchorStore(DirectoryObjects(tmp_path / "anchors"))
        verified = await LedgerVerifier(pool, store=anchors).verify()
        assert (verified.findings, verified.anchors > len(points)) == ([], True)
        async with pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM open_attempt WHERE state = 'open'"
            )
            assert await cursor.fetchone() == (0,)
    assert not list(tmp_path.rglob("*.spool"))
    assert not list(tmp_path.rglob("dead-letters.jsonl"))
