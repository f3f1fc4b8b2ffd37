"""Verification finds any changed, dropped, inserted, reordered or cut-off row (proof 8)."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.journal_records import close_record, decision, open_record
from gateway_rig.ledger_rig import LedgerRig, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.chains.signing import read_signer
from terrace_gateway.ledger.chains.verify import LedgerVerifier, Verification
from terrace_gateway.ledger.exports.export import LedgerExport
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.object_store import DirectoryObjects, ObjectStore, ObjectStoreError
from terrace_gateway.spool.records import genesis_hash

Sql = psycopg.Connection[Any]


async def fill(rig: LedgerRig, count: int = 12) -> None:
    for number in range(count):
        opened = open_record(incarnation=rig.incarnation)
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened, amount_micro_usd=number))
    rig.journal.note(decision())
    async with rig.database.connection() as connection:
        await connection.execute(
            "INSERT INTO audit (actor, action, subject) VALUES ('jo', 'key.create', 'key_1')"
        )
    await rig.drain()


def keeper_of(rig: LedgerRig, folder: Path, key: Path | None = None) -> LedgerKeeper:
    return LedgerKeeper(
        rig.database, rig.shipper, clock=Clock(), store=store_of(folder),
        signer=None if key is None else read_signer(key), every_seconds=60,
    )  # fmt: skip


def store_of(folder: Path) -> AnchorStore:
    return AnchorStore(DirectoryObjects(folder / "anchors"))


async def verify(database: Database, folder: Path, publics: tuple[bytes, ...] = ()) -> Verification:
    return await LedgerVerifier(database, store=store_of(folder), public_keys=publics).verify()


def owner_may_anything(connection: Sql) -> None:
    """What an attacker with the database would do first."""
    for (name,) in connection.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'ledger_entry'::regclass UNION SELECT 'ledger_entry'"
        " UNION SELECT 'anchor' UNION SELECT 'chain_gap'"
    ).fetchall():
        connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER USER")


MIDDLE = "(SELECT writer, seq FROM ledger_entry WHERE writer LIKE 'w-%' AND seq = 5)"


def forge_tail(sql: Sql) -> None:
    """Change an entry and compute the whole chain behind it anew, in both tables."""
    rows = sql.execute(
        "SELECT seq, canonical, previous_hash FROM ledger_entry WHERE writer LIKE 'w-%'"
        " AND seq >= 5 ORDER BY seq"
    ).fetchall()
    previous = bytes(rows[0][2])
    for seq, canonical, _ in rows:
        fields = json.loads(canonical)
        if seq == 5:
            fields["amount_micro_usd"] = 0
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(previous + text.encode()).digest()
        sql.execute(
            "UPDATE ledger_entry SET canonical = %s, previous_hash = %s, hash = %s,"
            " amount_micro_usd = %s WHERE writer LIKE 'w-%%' AND seq = %s",
            (text, previous, digest, fields.get("amount_micro_usd", 0), seq),
        )
        previous = digest
    sql.execute("UPDATE chain SET hash = %s WHERE writer LIKE 'w-%%'", (previous,))


def cut_tail(sql: Sql) -> None:
    sql.execute("DELETE FROM ledger_entry WHERE writer LIKE 'w-%' AND seq > 5")
    sql.execute(
        "UPDATE chain SET seq = 5, hash = e.hash FROM ledger_entry e"
        " WHERE e.writer = chain.writer AND e.seq = 5 AND chain.writer LIKE 'w-%'"
    )


def swap(sql: Sql) -> None:
    for a, b in ((5, -1), (6, 5), (-1, 6)):
        sql.execute(f"UPDATE ledger_entry SET seq = {b} WHERE writer LIKE 'w-%' AND seq = {a}")


def insert(sql: Sql) -> None:
    columns = ", ".join(
        row[0]
        for row in sql.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = 'ledger_entry' AND column_name NOT IN ('entry_id', 'attempt_id')"
        ).fetchall()
    )
    sql.execute(
        f"INSERT INTO ledger_entry (attempt_id, {columns}) SELECT 'at_forged', {columns}"
        f" FROM ledger_entry WHERE (writer, seq) = {MIDDLE}"
    )


def drop_everything(sql: Sql) -> None:
    sql.execute("DELETE FROM ledger_entry WHERE writer LIKE 'w-%'")
    sql.execute("DELETE FROM chain WHERE writer LIKE 'w-%'")
    sql.execute("DELETE FROM anchor WHERE writer LIKE 'w-%'")


ATTACKS: dict[str, tuple[Callable[[Sql], object], set[str]]] = {
    "amount": (
        lambda sql: sql.execute(
            f"UPDATE ledger_entry SET amount_micro_usd = 0 WHERE (writer, seq) = {MIDDLE}"
        ),
        {"columns"},
    ),
    "bytes": (
        lambda sql: sql.execute(
            "UPDATE ledger_entry SET canonical = replace(canonical, 'search', 'sales'),"
            f" team = 'sales' WHERE (writer, seq) = {MIDDLE}"
        ),
        {"changed"},
    ),
    "dropped": (
        lambda sql: sql.execute(f"DELETE FROM ledger_entry WHERE (writer, seq) = {MIDDLE}"),
        {"missing"},
    ),
    "inserted": (insert, {"duplicate"}),
    "reordered": (swap, {"order", "columns"}),
    "cut off": (cut_tail, {"truncated", "missing"}),
    "forged": (forge_tail, {"anchor"}),
    "all of it": (drop_everything, {"missing", "truncated"}),
    "marked late": (
        lambda sql: sql.execute(
            f"UPDATE ledger_entry SET late = true WHERE (writer, seq) = {MIDDLE}"
        ),
        {"late"},
    ),
    "explained away": (
        lambda sql: (
            sql.execute(
                "INSERT INTO chain_gap SELECT writer, seq - 1, seq + 1, hash, 'trust me'"
                f" FROM ledger_entry WHERE (writer, seq) = {MIDDLE}"
            ),
            sql.execute(f"DELETE FROM ledger_entry WHERE (writer, seq) = {MIDDLE}"),
        ),
        {"gap"},
    ),
    "explained away as exported": (
        lambda sql: (
            sql.execute(
                "INSERT INTO chain_gap SELECT writer, seq - 1, seq + 1, hash,"
                f" 'exported: ledger_entry_202001' FROM ledger_entry WHERE (writer, seq) = {MIDDLE}"
            ),
            sql.execute(f"DELETE FROM ledger_entry WHERE (writer, seq) = {MIDDLE}"),
        ),
        {"gap"},
    ),
    "admin change": (
        lambda sql: sql.execute("DELETE FROM ledger_entry WHERE writer = 'admin'"),
        {"missing", "truncated"},
    ),
}


async def test_what_an_owner_of_the_database_does_to_the_ledger_is_found(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig)
        assert await keeper_of(rig, tmp_path).anchor() == 2
        before = await verify(rig.database, tmp_path)
        assert (before.whole, before.findings) == (True, [])
        assert before.entries >= 13
    for number, (name, (attack, kinds)) in enumerate(ATTACKS.items()):
        copy = f"{database}_{number}"
        with postgres.superuser() as sql:
            sql.execute(f"CREATE DATABASE {copy} TEMPLATE {database} OWNER gateway")
        try:
            with postgres.superuser(copy) as sql:
                owner_may_anything(sql)
                attack(sql)
            async with open_database(postgres.url(copy)) as attacked:
                after = await verify(attacked, tmp_path)
            found = {finding.kind for finding in after.findings}
            assert (after.whole, kinds - found) == (False, set()), name
        finally:
            with postgres.superuser() as sql:
                sql.execute(f"DROP DATABASE {copy} WITH (FORCE)")


async def test_a_head_that_says_nothing_yet_hides_no_entry(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """Without an anchor the line in table chain is all that says how long a chain is."""
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig)
        writer = rig.journal.chain.writer
        with postgres.superuser(database) as sql:
            owner_may_anything(sql)
            sql.execute("UPDATE ledger_entry SET amount_micro_usd = 0 WHERE writer = %s", (writer,))
            sql.execute(
                "UPDATE chain SET seq = 0, hash = %s WHERE writer = %s",
                (genesis_hash(writer), writer),
            )
        found = await verify(rig.database, tmp_path)
        assert {(finding.writer, finding.kind) for finding in found.findings} == {
            (writer, "columns"), (writer, "truncated"),
        }  # fmt: skip


async def test_the_guards_own_role_cannot_change_or_delete_an_entry(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig)
        month = (await rig.rows("SELECT tableoid::regclass::text FROM ledger_entry LIMIT 1"))[0][0]
        for statement in (
            "UPDATE ledger_entry SET amount_micro_usd = 0",
            "DELETE FROM ledger_entry",
            "TRUNCATE ledger_entry",
            f"UPDATE {month} SET amount_micro_usd = 0",
            f"DELETE FROM {month}",
            f"TRUNCATE {month}",
            "DELETE FROM chain_gap",
        ):
            with pytest.raises(
                (psycopg.errors.InsufficientPrivilege, psycopg.errors.RestrictViolation)
            ):
                async with rig.database.connection() as connection:
                    await connection.execute(statement.encode())


async def test_anchors_are_signed_and_a_forged_one_is_found(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("11" * 32)
    public = read_signer(key).public
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig)
        await keeper_of(rig, tmp_path, key).anchor()
        result = await verify(rig.database, tmp_path, (public,))
        assert (result.whole, result.anchors, result.unsigned_anchors) == (True, 2, 0)
        forged = next((tmp_path / "anchors").rglob("*.json"))
        document = json.loads(forged.read_text())
        document["signed_at"] = "2020-01-01T00:00:00.000000+00:00"
        forged.chmod(0o640)
        forged.write_text(json.dumps(document))
        result = await verify(rig.database, tmp_path, (public,))
        assert {finding.kind for finding in result.findings} == {"signature"}


class Refusing(DirectoryObjects):
    """Takes no anchors of one writer."""

    def __init__(self, path: Path, writer: str) -> None:
        super().__init__(path)
        self.writer = writer

    def put(self, key: str, body: bytes, *, retain_until: datetime | None = None) -> bool:
        if f"/{self.writer}/" in f"/{key}":
            raise ObjectStoreError("not this one")
        return super().put(key, body, retain_until=retain_until)


async def test_a_head_that_cannot_be_anchored_keeps_no_other(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one failure ends a pass: it is the last one at the next."""
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        own = rig.journal.chain.writer
        for most in (3, 1):
            monkeypatch.setattr("terrace_gateway.ledger.keeper.MOST_FAILURES", most)
            await fill(rig)
            objects = Refusing(tmp_path / f"anchors-{most}", own)
            keeper = LedgerKeeper(
                rig.database, rig.shipper, clock=Clock(), store=AnchorStore(objects), signer=None,
                every_seconds=60,
            )  # fmt: skip
            for made in (1, 1) if most == 3 else (0, 1):
                with pytest.raises(ObjectStoreError, match="not this one"):
                    await keeper.anchor()
                assert keeper.anchored == made
            objects.writer = "nobody"
            assert await keeper.anchor() == 1
            assert {key.split("/")[-2] for key in objects.keys("")} == {own, "admin"}


async def test_verification_passes_while_entries_are_shipped(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        stop = asyncio.Event()

        async def traffic() -> None:
            while not stop.is_set():
                opened = open_record(incarnation=rig.incarnation)
                await rig.journal.open(opened)
                await rig.journal.close(close_record(opened))

        tasks = [asyncio.create_task(traffic()) for _ in range(5)]
        try:
            rounds, entries = 0, 0
            deadline = asyncio.get_running_loop().time() + 60
            while rounds < 15 or entries <= 50:
                assert asyncio.get_running_loop().time() < deadline, "nothing is shipped"
                rounds += 1
                result = await verify(rig.database, tmp_path)
                entries = result.entries
                assert result.findings == []
                await keeper_of(rig, tmp_path).anchor()
        finally:
            stop.set()
            await asyncio.gather(*tasks)


async def test_a_month_is_dropped_only_after_its_export_and_verification_says_where_it_is(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig)
        name = (await rig.rows("SELECT tableoid::regclass::text FROM ledger_entry LIMIT 1"))[0][0]
        with pytest.raises(psycopg.errors.CheckViolation, match="not exported"):
            await rig.rows("SELECT drop_ledger_partition(%s)", name)
        exports = DirectoryObjects(tmp_path / "export")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert await LedgerExport(rig.database, exports).export(before=tomorrow)
        assert (await rig.rows("SELECT drop_ledger_partition(%s)", name))[0][0] >= 13

        async def kinds(where: ObjectStore | None = exports) -> set[str]:
            verifier = LedgerVerifier(rig.database, store=store_of(tmp_path), exports=where)
            result = await verifier.verify()
            assert result.whole == (not {f.kind for f in result.findings} - {"exported"})
            return {finding.kind for finding in result.findings}

        assert await kinds() == {"exported"}
        assert await kinds(None) == {"gap"}
        assert await kinds(DirectoryObjects(tmp_path / "elsewhere")) == {"gap"}
        await fill(rig)
        assert await kinds() == {"exported"}
        # One entry that came after the export goes, and its gap says that it was exported too.
        with postgres.superuser(database) as sql:
            owner_may_anything(sql)
            sql.execute(
                "INSERT INTO chain_gap SELECT writer, seq - 1, seq + 1, hash, 'exported: ' || %s"
                " FROM ledger_entry WHERE writer LIKE 'w-%%' AND seq = 20",
                (name,),
            )
            sql.execute("DELETE FROM ledger_entry WHERE writer LIKE 'w-%' AND seq = 20")
        assert await kinds() == {"exported", "gap"}
        # The manifest is not what was written; and then the month is there again, and empty.
        for manifest in (tmp_path / "export").rglob("manifest.json"):
            manifest.chmod(0o640)
            manifest.write_text(manifest.read_text() + " ")
        assert await kinds() == {"gap"}
        with postgres.superuser(database) as sql:
            sql.execute(f"CREATE TABLE {name} ()")
        assert await kinds() == {"gap"}
