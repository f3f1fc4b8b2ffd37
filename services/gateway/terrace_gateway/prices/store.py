"""Price books in the database: which there are, and which one is in force."""

import hashlib
import json
from typing import Any

from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from terrace_common.prices import PriceBook
from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.database import Connection, Database

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_IN_FORCE = "SELECT version FROM price_book_use ORDER BY use_id DESC LIMIT 1"
_LIST = (
    "SELECT b.version, b.digest, b.actor, b.created_at, jsonb_array_length(b.document->'entries')"
    " AS entries, coalesce(b.version = (SELECT version FROM price_book_use ORDER BY use_id DESC"
    " LIMIT 1), false) AS in_force FROM price_book b"
    " ORDER BY b.created_at DESC, b.version LIMIT 500"
)
_USE = "INSERT INTO price_book_use (version, actor, reason) VALUES (%s, %s, %s)"


class VersionTakenError(Exception):
    """There is another book of this version: a book never changes."""


class NoSuchVersionError(Exception):
    """There is no book of this version."""


class UnreadableBookError(Exception):
    """A stored book that this release cannot read: one of another release put it there. The text
    says what is wrong with it."""


class PriceStore:
    """Reads and writes price books. Raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> PriceBook | None:
        """The book in force; ``None``: the spec's own prices. Raises ``UnreadableBookError``."""
        async with self._database.connection() as connection:
            return await book_in_force(connection)

    async def find(self, version: str) -> PriceBook | None:
        """One book. Raises ``UnreadableBookError``."""
        async with self._database.connection() as connection:
            return await _book(connection, version)

    async def list_books(self) -> list[DictRow]:
        """All books without their entries, the newest first."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_LIST)
            return await cursor.fetchall()

    async def apply(
        self, book: PriceBook, *, actor: str, reason: str, admission: Admission | None = None
    ) -> bool:
        """Keep a book and put it in force, audited. ``False``: it was in force already.

        Raises ``VersionTakenError``.
        """
        document = book.model_dump(mode="json", exclude_defaults=True)
        digest = digest_of(book)
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            await connection.execute(
                "INSERT INTO price_book (version, document, digest, actor) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (version) DO NOTHING",
                (book.version, Jsonb(document), digest, actor),
            )
            cursor = await connection.execute(
                "SELECT digest FROM price_book WHERE version = %s", (book.version,)
            )
            row = await cursor.fetchone()
            if row is None or row[0] != digest:
                raise VersionTakenError(book.version)
            return await _use(connection, book.version, actor=actor, reason=reason)

    async def use(
        self, version: str | None, *, actor: str, reason: str, admission: Admission | None = None
    ) -> bool:
        """Put a book that is there in force again, or none (``None``), audited. ``False``: it was
        in force already. Raises ``NoSuchVersionError``, ``UnreadableBookError``."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            if version is not None and await _book(connection, version) is None:
                raise NoSuchVersionError(version)
            return await _use(connection, version, actor=actor, reason=reason)


def digest_of(book: PriceBook) -> str:
    """SHA-256 of the book in canonical form, hex."""
    document = book.model_dump(mode="json")
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_book(document: dict[str, Any]) -> PriceBook:
    """A book as it was stored. Raises ``UnreadableBookError``."""
    try:
        return PriceBook.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the book"
        raise UnreadableBookError(
            f"this release cannot read price book {document.get('version')!r}:"
            f" {place}: {first['msg']}; apply another one, or the spec's own prices"
        ) from None


async def book_in_force(connection: Connection) -> PriceBook | None:
    """The book in force; ``None``: the spec's own prices. Raises ``UnreadableBookError``."""
    version = await _in_force(connection)
    return None if version is None else await _book(connection, version)


async def _in_force(connection: Connection) -> str | None:
    cursor = await connection.execute(_IN_FORCE)
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def _book(connection: Connection, version: str) -> PriceBook | None:
    cursor = await connection.execute(
        "SELECT document FROM price_book WHERE version = %s", (version,)
    )
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return None if row is None else read_book(row[0])


async def _use(connection: Connection, version: str | None, *, actor: str, reason: str) -> bool:
    if await _in_force(connection) == version:
        return False
    await connection.execute(_USE, (version, actor, reason))
    await record(
        connection,
        actor=actor,
        action="prices.use",
        subject=f"prices:{version or 'spec'}",
        reason=reason,
    )
    return True
