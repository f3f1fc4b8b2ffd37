"""What reads the ledger by time reads the months that were asked for, by an index."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.ledger_rig import open_database
from gateway_rig.postgres import Postgres
from psycopg import sql

from terrace_gateway.database import Connection
from terrace_gateway.ledger import opening_index
from terrace_gateway.ledger.bills.reconcile import SETTLED
from terrace_gateway.ledger.exports import export
from terrace_gateway.ledger.exports.export import ROWS as EXPORTED_ROWS
from terrace_gateway.ledger.exports.export_days import DAYS, list_days
from terrace_gateway.ledger.object_store import DirectoryObjects
from terrace_gateway.ledger.opening_index import Indexes, OpeningIndex, make_opening_index
from terrace_gateway.prices.rerating_store import PAGE, ReratingStore

ROWS = 6000  # of each month
_FILL = """
INSERT INTO ledger_entry (opened_at, kind, writer, seq, previous_hash, hash, canonical, attempt_id,
    request_id, trace_id, incarnation_id, replica, org, team, key_id, surface, model, deployment,
    provider, purpose, price_version, policy_version, outcome, usage_source, input_tokens,
    output_tokens, amount_micro_usd, closed_at)
SELECT t, 'attempt', 'w-1', i, sha256('a'), sha256('b'), repeat(md5(i::text), 20),
    'att_n' || md5(t::text), 'req', 'trace', 1, 'r', 'acme', 'search', 'key_1', 'chat', 'sim-small',
    'd', 'simulator', 'call', 'p', 1, 'ok', 'response', 10, 20, 300, t
FROM (SELECT i, %s::timestamptz + i * interval '1 minute' AS t FROM generate_series(1, %s) i) s
"""

_WITHOUT = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ledger_entry'::regclass AND NOT EXISTS (
    SELECT FROM pg_class n JOIN pg_index x ON x.indexrelid = n.oid
    WHERE n.relname = c.relname || '_opened' AND x.indisvalid)
"""


def month_begin(back: int) -> datetime:
    moment = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for _ in range(back):
        moment = (moment - timedelta(days=1)).replace(day=1)
    return moment


def table(back: int) -> str:
    return f"ledger_entry_{month_begin(back):%Y%m}"


@pytest.fixture
async def filled(postgres: Postgres, database: str) -> AsyncIterator[Any]:
    """A ledger of two months, as a vacuum leaves it."""
    async with open_database(postgres.url(database)) as pool:
        async with pool.long_connection(60) as connection:
            for back in (0, 1):
                await connection.execute(_FILL.encode(), (month_begin(back), ROWS))
            assert table(1) in (await make_opening_index(connection)).made
            assert await make_opening_index(connection) == Indexes()
        with postgres.superuser(database) as admin:
            admin.autocommit = True
            admin.execute("VACUUM ANALYZE ledger_entry")
        yield pool


async def scans(connection: Connection, query: Any, values: Any) -> dict[str, str]:
    """Tables of the ledger that a query reads, and how."""
    text = query if isinstance(query, sql.Composed) else sql.SQL(query)
    cursor = await connection.execute(sql.SQL("EXPLAIN (FORMAT json) ") + text, values)
    row = await cursor.fetchone()
    assert row is not None
    return dict(_scans(row[0][0]["Plan"]))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    name = node.get("Relation Name", "")
    if name.startswith("ledger_entry"):
        yield name, f"{node['Node Type']} {node.get('Index Name', '')}".strip()
    for below in node.get("Plans", ()):
        yield from _scans(below)


async def test_a_recheck_reads_its_hours(filled: Any) -> None:
    values = {"by_name": [], "day": 86400, "provider": "simulator", "limit": 10_000}
    async with filled.connection() as connection:
        since = month_begin(1) + timedelta(minutes=ROWS - 60)
        found = await scans(connection, SETTLED, {**values, "since": since})
        assert found[table(1)] == f"Index Scan {table(1)}_opened"
        found = await scans(connection, SETTLED, {**values, "since": month_begin(0)})
        assert table(0) in found
        assert table(1) not in found


async def test_a_page_of_a_re_rating_ends_where_it_is_full(filled: Any) -> None:
    since, until = month_begin(1), month_begin(0)
    values = {"since": since, "until": until, "model": None, "after_id": "", "limit": 500}
    async with filled.connection() as connection:
        found = await scans(connection, PAGE, values)
        assert found == {table(1): f"Index Scan {table(1)}_opened"}
    store = ReratingStore(filled, replica="r")
    seen: list[str] = []
    after = None
    while page := await store.page(since=since, until=until, model=None, after=after, limit=1900):
        seen += [one.attempt_id for one in page]
        after = (page[-1].opened_at, page[-1].attempt_id)
    assert len(seen) == len(set(seen)) == ROWS


async def test_days_of_an_export_are_counted_in_the_index(filled: Any) -> None:
    query = sql.SQL(DAYS).format(sql.Identifier(table(1)))
    async with filled.connection() as connection:
        found = await scans(connection, query, (month_begin(0), 10**9))
        assert found == {table(1): f"Index Only Scan {table(1)}_opened"}
    days = await list_days(filled, before=month_begin(0), last_entry_id=10**9)
    assert {month for month, *_ in days} == {table(1)}
    assert sum(count for _, _, count, _, _ in days) == ROWS
    assert days == sorted(days, key=lambda day: day[1])


async def test_the_first_page_of_a_late_day_passes_nothing_of_earlier_days(filled: Any) -> None:
    days = await list_days(filled, before=month_begin(0), last_entry_id=10**9)
    month, day, _, first, last = days[3]
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    values = {
        "begin": begin, "end": begin + timedelta(days=1), "after": first - 1, "last": last,
        "limit": 100,
    }  # fmt: skip
    text = sql.SQL("EXPLAIN (ANALYZE, FORMAT json) ") + sql.SQL(EXPORTED_ROWS).format(
        sql.Identifier(month)
    )
    async with filled.connection() as connection:
        row = await (await connection.execute(text, values)).fetchone()
    nodes = list(_nodes(row[0][0]["Plan"]))
    assert any("Index Name" in node for node in nodes)
    assert [node.get("Rows Removed by Filter", 0) for node in nodes] == [0] * len(nodes)


async def test_pages_of_an_export_begin_at_the_days_first_entry(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = await list_days(filled, before=month_begin(0), last_entry_id=10**9)
    begins: list[int] = []
    page = export._page

    async def seen(connection: Connection, month: str, day: date, after: int, last: int) -> Any:
        begins.append(after)
        return await page(connection, month, day, after, last)

    monkeypatch.setattr(export, "_page", seen)
    done = await export.LedgerExport(filled, DirectoryObjects(tmp_path)).export(
        before=month_begin(0)
    )
    assert [item.rows for item in done] == [count for _, _, count, _, _ in days]
    assert begins == [first - 1 for *_, first, _ in days]


async def test_an_index_that_was_not_finished_is_made_again(filled: Any, postgres: Postgres,
    database: str,
) -> None:  # fmt: skip
    with postgres.superuser(database) as admin:
        admin.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
            (f"{table(1)}_opened",),
        )
    async with filled.long_connection(60) as connection:
        assert await make_opening_index(connection) == Indexes(made=(table(1),))
        assert await make_opening_index(connection) == Indexes()


def months_without(sql_: psycopg.Connection[Any]) -> set[str]:
    return {name for (name,) in sql_.execute(_WITHOUT.encode()).fetchall()}


async def test_a_month_that_cannot_have_its_index_keeps_no_other(
    postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest one, which is the first, is somebody else's; then it is ours."""
    monkeypatch.setattr(opening_index, "AGAIN_SECONDS", 0.05)
    async with open_database(postgres.url(database)) as pool:
        with postgres.superuser(database) as admin:
            admin.autocommit = True
            newest = max(name for name in months_without(admin) if name[-6:].isdigit())
            admin.execute(f"ALTER TABLE {newest} OWNER TO CURRENT_USER".encode())
            indexes = OpeningIndex(pool)
            running = asyncio.create_task(indexes.run())
            async with asyncio.timeout(60):
                while months_without(admin) != {newest} or not indexes.missing:
                    await asyncio.sleep(0.02)
                admin.execute(f"ALTER TABLE {newest} OWNER TO gateway".encode())
                while months_without(admin) or indexes.missing:
                    await asyncio.sleep(0.02)
            running.cancel()


async def test_an_index_that_takes_too_long_keeps_no_other_and_is_made_at_the_next_pass(
    postgres: Postgres, database: str
) -> None:
    """Neither while it is made, nor while what is left of it cannot be taken away."""
    async with open_database(postgres.url(database)) as pool:
        with postgres.superuser(database) as admin:
            admin.autocommit = True
            every = months_without(admin)
            for name in (table(0), table(1)):
                admin.execute(f"DROP INDEX IF EXISTS {name}_opened".encode())
            with psycopg.connect(postgres.url(database)) as writer:
                writer.execute(f"LOCK TABLE {table(0)} IN ROW EXCLUSIVE MODE".encode())
                for made in (every - {table(0)}, set[str]()):
                    async with pool.long_connection(5) as connection:
                        found = await make_opening_index(connection)
                        timeout = await (await connection.execute("SHOW lock_timeout")).fetchone()
                    assert set(found.made) == made
                    assert [month for month, _ in found.missing] == [table(0)]
                    assert timeout == ("0",)
            assert months_without(admin) == {table(0)}
            async with pool.long_connection(60) as connection:
                assert await make_opening_index(connection) == Indexes(made=(table(0),))
