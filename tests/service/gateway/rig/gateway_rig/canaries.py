"""Canary secrets, and a search for them in everything that a guard leaves behind."""

import base64
import gzip
import hashlib
import json
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from psycopg import sql

from gateway_rig.postgres import Postgres

MIN_LENGTH = 12
_COLUMNS = """
SELECT c.oid::regclass::text, array_agg(a.attname::text ORDER BY a.attnum)
           FILTER (WHERE a.atttypid = 'bytea'::regtype)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
GROUP BY c.oid ORDER BY 1
"""


class Canaries:
    """Secrets by name, each in every form that a leak may have."""

    def __init__(self) -> None:
        self._forms: dict[bytes, str] = {}

    def plant(self, name: str, secret: str | bytes) -> None:
        """Search for this from now on: plain, escaped, encoded, and hashed without a key."""
        raw = secret.encode() if isinstance(secret, str) else secret
        if len(raw) < MIN_LENGTH:
            raise ValueError(f"canary {name} is too short to be found by itself")
        for form in _forms(raw):
            self._forms[form] = name

    def found_in(self, data: bytes) -> set[str]:
        """Names of the canaries that are in the data."""
        return {name for form, name in self._forms.items() if form in data}

    def leaks(self, sinks: Iterable[tuple[str, bytes]]) -> dict[str, set[str]]:
        """Names of sinks, and what was found there."""
        found = {name: self.found_in(data) for name, data in sinks}
        return {name: canaries for name, canaries in found.items() if canaries}


def files_below(folder: Path, *, without: Iterable[Path] = ()) -> Iterator[tuple[str, bytes]]:
    """Every file with its content, and with what is compressed in it."""
    left_out = set(without)
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path in left_out:
            continue
        data = path.read_bytes()
        yield str(path.relative_to(folder)), data
        for unpack in (gzip.decompress, zlib.decompress):
            try:
                yield f"{path.relative_to(folder)} (unpacked)", unpack(data)
            except (OSError, EOFError, zlib.error):
                continue


def tables(postgres: Postgres, database: str) -> Iterator[tuple[str, bytes]]:
    """Every row of every table: as text, and each column of bytes as it is."""
    with postgres.superuser(database) as connection:
        for table, binary in connection.execute(_COLUMNS).fetchall():
            name = sql.SQL(table)
            rows = connection.execute(sql.SQL("SELECT t::text FROM {} t").format(name))
            yield f"table {table}", "\n".join(row[0] for row in rows.fetchall()).encode()
            for column in binary or ():
                query = sql.SQL("SELECT {} FROM {}").format(sql.Identifier(column), name)
                cells = [row[0] for row in connection.execute(query).fetchall() if row[0]]
                yield f"table {table}, {column}", b"\0".join(bytes(cell) for cell in cells)


def server_state(postgres: Postgres, database: str) -> Iterator[tuple[str, bytes]]:
    """What the server shows of sessions, and says in its log."""
    with postgres.superuser(database) as connection:
        rows = connection.execute("SELECT a::text FROM pg_stat_activity a").fetchall()
    yield "pg_stat_activity", "\n".join(row[0] for row in rows).encode()
    yield "the log of Postgres", postgres.log_text().encode()


def _forms(raw: bytes) -> Iterator[bytes]:
    yield raw
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    text = raw.decode("utf-8", "replace")
    if text.encode() == raw:
        yield urllib.parse.quote(text, safe="").encode()
        yield json.dumps(text)[1:-1].encode()
        yield json.dumps(json.dumps(text))[3:-3].encode()
        yield text.encode("utf-16-le")
    for shift in range(3):  # base64 of a text that has it anywhere
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            inner = encode(b"\0" * shift + raw)
            yield inner[4 if shift else 0 : len(inner) - 4]
    digest = hashlib.sha256(raw)
    yield digest.digest()
    yield digest.hexdigest().encode()
