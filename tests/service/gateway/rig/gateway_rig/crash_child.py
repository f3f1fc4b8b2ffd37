"""A process with a journal, a shipper and all that keeps the ledger, to be killed anywhere.

Mode ``traffic`` calls a provider that keeps its own books (``FOLDER/bill.jsonl``), ``ship`` only
brings to the ledger what is left, ``reconcile`` also reads the bill. Where it dies:
``TERRACE_CRASH_AT``.
"""

import asyncio
import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path

from psycopg.types.json import Jsonb

from gateway_rig.journal_records import close_record, open_record, unknown_close
from gateway_rig.ledger_rig import begin_incarnation, open_database
from terrace_gateway.calls.ports import OpenRecord, Usage
from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.ending import end_tasks
from terrace_gateway.ledger.bills.bill_sources import Candidate
from terrace_gateway.ledger.bills.provider_bill import Billed
from terrace_gateway.ledger.bills.reconcile import Reconciler
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.object_store import DirectoryObjects
from terrace_gateway.ledger.reaper import LedgerReaper
from terrace_gateway.ledger.shipper import Shipper
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.records import open_fields

CALLS = 120
PARALLEL = 6


class FileBill:
    """The provider: a line per call, written before it answers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def charge(self, attempt_id: str, amount: int) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"attempt_id": attempt_id, "amount": amount}) + "\n")

    def read(self) -> dict[str, tuple[int, int]]:
        """Attempt -> calls and money."""
        found: dict[str, tuple[int, int]] = {}
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        for line in map(json.loads, lines):
            calls, amount = found.get(line["attempt_id"], (0, 0))
            found[line["attempt_id"]] = (calls + 1, amount + line["amount"])
        return found

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        books = self.read()
        answer: dict[str, Billed] = {}
        for candidate in candidates:
            calls, amount = books.get(candidate.attempt_id, (0, 0))
            outcome = "ok" if calls else "upstream_error"
            answer[candidate.attempt_id] = Billed(calls, False, 0, 0, amount, outcome)
        return answer


async def call(journal: SpoolJournal, bill: FileBill, opened: OpenRecord) -> None:
    """One upstream call: open, be billed, close."""
    await journal.open(opened)
    fate = random.random()
    if fate < 0.1:  # not sent
        await journal.close(
            close_record(opened, outcome="not_sent", usage=Usage(0, 0), amount_micro_usd=0)
        )
        return
    amount = random.randint(1, 900)
    bill.charge(opened.attempt_id, amount)
    if fate < 0.2:
        await journal.close(unknown_close(opened))
    elif fate < 0.25:  # an answer that we took for a refusal, and that was billed all the same
        pass
    else:
        await journal.close(close_record(opened, amount_micro_usd=amount, usage=Usage(0, 0)))


async def lose_a_replica(database: Database, bill: FileBill) -> None:
    """An attempt of a guard whose volume is lost: only the reaper knows of it."""
    lost = await begin_incarnation(database, "gateway-lost")
    opened = open_record(f"at_lost_{uuid.uuid4().hex}", incarnation=lost, hard_limit_seconds=0)
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE incarnation SET lease_until = clock_timestamp() - interval '1 s'"
            " WHERE incarnation_id = %s",
            (lost,),
        )
        await connection.execute(
            "INSERT INTO open_attempt (attempt_id, opened_at, writer, incarnation_id, provider,"
            " hard_limit_seconds, record) VALUES (%s, %s, 'w-lost', %s, 'simulator', 0, %s)",
            (opened.attempt_id, opened.opened_at, lost, Jsonb(open_fields(opened))),
        )
    bill.charge(opened.attempt_id, 321)


def run(url: str, folder: Path, mode: str, replica: str, seed: int) -> None:
    """Run to the end, or to the crash point."""
    random.seed(seed)
    asyncio.run(main(url, folder, mode, replica))


async def main(url: str, folder: Path, mode: str, replica: str) -> None:
    """As ``run``. The spool and dead letters of a replica are in a folder of its own."""
    bill = FileBill(folder / "bill.jsonl")
    async with open_database(url) as database:
        clock = Clock()
        journal = SpoolJournal(
            folder / replica / "spool", replica=replica, clock=clock, segment_bytes=16 * 1024
        )
        journal.start()

        async def closed(number: int) -> None:
            async with database.connection() as connection:
                await connection.execute("SELECT close_incarnation(%s)", (number,))

        shipper = Shipper(
            journal,
            database,
            replica=replica,
            dead_letters=folder / replica,
            on_incarnation_shipped=closed,
        )
        keeper = LedgerKeeper(
            database, shipper, clock=clock, store=AnchorStore(DirectoryObjects(folder / "anchors")),
            signer=None, every_seconds=0.05,
        )  # fmt: skip
        reaper = LedgerReaper(database, replica=replica, every_seconds=0.05, margin_seconds=0)
        tasks = [asyncio.create_task(work.run()) for work in (shipper, keeper, reaper)]
        if mode == "traffic":
            incarnation = await begin_incarnation(database, replica)
            await journal.act_for(incarnation)
            await lose_a_replica(database, bill)

            async def caller() -> None:
                for _ in range(CALLS // PARALLEL):
                    await call(journal, bill, open_record(incarnation=incarnation))

            await asyncio.gather(*(caller() for _ in range(PARALLEL)))
        await journal.seal()
        await shipper.drain(30)
        await reaper.reap()
        if mode != "ship":
            reconciler = Reconciler(
                database, lambda: {"simulator": bill}, replica=replica, reap=(reaper.reap,)
            )
            await reconciler.reconcile()
        await keeper.anchor()
        await journal.finish()
        await end_tasks(tasks, every_seconds=1)
        await journal.stop()
