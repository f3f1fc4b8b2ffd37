"""Reading the policy tables: everything at first, then what changed."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from terrace_gateway.calls.ports import Cap, Window
from terrace_gateway.database import Connection, Database
from terrace_gateway.policy.records import (
    CapRow,
    Changes,
    KeyRecord,
    KillKind,
    KillRow,
    PriceBookRow,
    Secret,
    VersionRow,
)
from terrace_gateway.prices.store import UnreadableBookError, book_in_force

UNCAPPED = 10**18
"""Amount of a cap that is counted and not capped: a million million dollars."""
EVERYTHING = -1

_HEAD = "SELECT epoch, timeline, clock_timestamp() FROM policy_head, database_timeline() timeline"
_VERSION = (
    "SELECT version, text, digest FROM governance_version WHERE changed_epoch > %s"
    " ORDER BY version DESC LIMIT 1"
)
# Keys that ended a while ago are only in the database: nobody can call with them.
_KEYS = (
    "SELECT key_id, key_hash, team, name, declared, app, user_name, models, policies, surfaces,"
    " features, expires_at, revoked_at IS NOT NULL FROM virtual_key WHERE changed_epoch > %s"
)
_LIVE_KEYS = (
    " AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()"
    " - interval '1 day')"
)
_SECRETS = "SELECT key_hash, key_id, valid_until FROM rotated_secret WHERE changed_epoch > %s"
_LIVE_SECRETS = " AND valid_until > clock_timestamp()"
_CAPS = (
    "SELECT cap_id, scope, scope_id, dimension, window_kind,"
    " CASE window_kind WHEN 'calendar' THEN 0 ELSE abs(window_seconds) END, window_unit,"
    " window_zone, amount, mode, thresholds, retired_at IS NULL FROM cap WHERE changed_epoch > %s"
)
_LIVE_CAPS = " AND retired_at IS NULL"
_BOOK_CHOSEN = "SELECT true FROM price_book_use WHERE changed_epoch > %s LIMIT 1"
_KILLS = "SELECT kind, target, lifted_at IS NULL FROM kill_switch WHERE changed_epoch > %s"


@dataclass(frozen=True, slots=True)
class Head:
    """The epoch of the policy, the timeline of the database (0: it hides it), and its time."""

    epoch: int
    timeline: int
    now: datetime


def timeline_number(text: str) -> int:
    """A timeline as the database names it. Of a service that hides it 0: no server has that one."""
    return 0 if text == "hidden" else int(text, 16)


class PolicyStore:
    """The policy tables. Every method raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def head(self) -> Head:
        """One round trip."""
        async with self._database.connection() as connection:
            return await _head(connection)

    async def changes(self, since: int) -> Changes:
        """Every row that is newer than epoch ``since``, as of one moment."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            head = await _head(connection)
            first = since == EVERYTHING
            version = await _rows(connection, _VERSION, since)
            keys = await _rows(connection, _KEYS + (_LIVE_KEYS if first else ""), since)
            secrets = await _rows(connection, _SECRETS + (_LIVE_SECRETS if first else ""), since)
            caps = await _rows(connection, _CAPS + (_LIVE_CAPS if first else ""), since)
            kills = await _rows(connection, _KILLS, since)
            chosen = first or await _rows(connection, _BOOK_CHOSEN, since)
            book = await _book(connection) if chosen else None
        return Changes(
            since=since,
            epoch=head.epoch,
            timeline=head.timeline,
            version=VersionRow(*version[0]) if version else None,
            keys=tuple(_key(row) for row in keys if not row[12]),
            gone_keys=tuple(row[0] for row in keys if row[12]),
            secrets=tuple(Secret(bytes(row[0]), row[1], row[2]) for row in secrets),
            caps=tuple(_cap(row) for row in caps),
            price_book=book,
            kills=tuple(KillRow(cast("KillKind", row[0]), row[1], row[2]) for row in kills),
        )


async def _head(connection: Connection) -> Head:
    cursor = await connection.execute(_HEAD)
    row = await cursor.fetchone()
    if row is None:
        raise RuntimeError("policy_head has no row")
    epoch, timeline, now = row
    return Head(epoch, timeline_number(timeline), now)


async def _rows(connection: Connection, query: str, since: int) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query.encode(), (since,))
    return await cursor.fetchall()


async def _book(connection: Connection) -> PriceBookRow:
    try:
        return PriceBookRow(await book_in_force(connection))
    except UnreadableBookError as error:  # what the rest of the change forbids holds all the same
        return PriceBookRow(None, unusable=str(error))


def _key(row: tuple[Any, ...]) -> KeyRecord:
    return KeyRecord(
        key_id=row[0], key_hash=bytes(row[1]), team=row[2], name=row[3], declared=row[4],
        app=row[5], user=row[6], models=_names(row[7]), policies=tuple(row[8] or ()),
        surfaces=_names(row[9]), features=_names(row[10]), expires_at=row[11],
    )  # fmt: skip


def _names(value: list[str] | None) -> frozenset[str] | None:
    return None if value is None else frozenset(value)


def _cap(row: tuple[Any, ...]) -> CapRow:
    cap_id, scope, scope_id, dimension, kind, seconds, unit, zone, amount, mode, percents, live = (
        row
    )
    return CapRow(
        Cap(
            cap_id=cap_id, scope=scope, scope_id=scope_id, dimension=dimension,
            window=Window(kind, seconds, unit, zone or "UTC"),
            amount=UNCAPPED if amount is None else amount, mode=mode or "block",
            thresholds=tuple(percents or ()),
        ),
        live,
    )  # fmt: skip
