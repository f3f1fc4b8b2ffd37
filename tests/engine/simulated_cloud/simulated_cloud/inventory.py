"""What exists in the simulated cloud: one SQLite file, shared by every provider process of every
stack.

Each change is one transaction, so a provider killed at any moment leaves the file readable and
complete. The file also keeps the faults that were ordered, the children that were assumed, and the
books: an append-only log of calls, in which a test can count what was made twice.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .values import Properties

DIRECTORY_VARIABLE = "SIMULATED_CLOUD_DIR"
_FILE = "cloud.sqlite"
_PENDING = "pending deletion: "
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
  type TEXT NOT NULL, scope TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL,
  inputs TEXT NOT NULL, outputs TEXT NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL,
  PRIMARY KEY (type, scope, id));
CREATE INDEX IF NOT EXISTS items_by_id ON items (id);
CREATE TABLE IF NOT EXISTS calls (
  number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, process INTEGER NOT NULL,
  operation TEXT NOT NULL, type TEXT NOT NULL, scope TEXT NOT NULL, id TEXT NOT NULL,
  name TEXT NOT NULL, outcome TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS faults (
  number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, operation TEXT NOT NULL,
  type TEXT NOT NULL, name TEXT NOT NULL, remaining INTEGER NOT NULL, seconds REAL NOT NULL,
  message TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS assumed (
  number INTEGER PRIMARY KEY AUTOINCREMENT, parent TEXT NOT NULL, type TEXT NOT NULL,
  name TEXT NOT NULL, reason TEXT NOT NULL, UNIQUE (parent, type, name));
"""


@dataclass(frozen=True)
class Item:
    """One thing in the cloud. `scope` is where its id is unique, e.g. `123456789012/us-east-1`."""

    type: str
    scope: str
    id: str
    name: str
    inputs: Properties
    outputs: Properties
    created_at: float = field(default_factory=time.time)

    def __getitem__(self, property: str) -> Any:
        return self.outputs.get(property)

    @property
    def arn(self) -> str:
        return str(self.outputs.get("arn") or "")


@dataclass(frozen=True)
class Call:
    """One line of the books: what a provider process was asked to do and what came of it."""

    number: int
    at: float
    process: int
    operation: str
    type: str
    scope: str
    id: str
    name: str
    outcome: str


def default_directory() -> Path:
    """`SIMULATED_CLOUD_DIR`, or `.simulated-cloud` in the working directory."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or ".simulated-cloud").absolute()


class Inventory:
    """The file. Safe to share between threads and processes; `transaction` groups a check and its
    change."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._local = threading.local()

    @property
    def path(self) -> Path:
        return self.directory / _FILE

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA busy_timeout=60000")
            found.execute("PRAGMA journal_mode=WAL")
            found.execute("PRAGMA synchronous=NORMAL")
            found.executescript(_SCHEMA)
            self._local.connection = found
        return found

    def close(self) -> None:
        """Closes this thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is not None:
            found.close()
            self._local.connection = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens at once or not at all; other writers wait."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def put(self, item: Item) -> None:
        """Adds `item`, or overwrites the one with the same type, scope and id."""
        self.connection.execute(
            "INSERT INTO items VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (type, scope, id) DO UPDATE SET"
            " inputs=excluded.inputs, outputs=excluded.outputs, updated_at=excluded.updated_at",
            (
                item.type,
                item.scope,
                item.id,
                item.name,
                json.dumps(item.inputs),
                json.dumps(item.outputs),
                item.created_at,
                time.time(),
            ),
        )

    def remove(self, item: Item) -> None:
        self.connection.execute(
            "DELETE FROM items WHERE type=? AND scope=? AND id=?", (item.type, item.scope, item.id)
        )

    def items(
        self,
        *,
        type: str | None = None,
        id: str | None = None,
        scopes: tuple[str, ...] | None = None,
    ) -> list[Item]:
        """All items, oldest first, narrowed by what is given. Those that wait for their deletion
        are left out."""
        wanted: list[tuple[str, tuple[str, ...]]] = []
        if scopes is None:
            wanted.append(("scope NOT LIKE ?", (f"{_PENDING}%",)))
        if type is not None:
            wanted.append(("type=?", (type,)))
        if id is not None:
            wanted.append(("id=?", (id,)))
        if scopes is not None:
            wanted.append((f"scope IN ({','.join('?' * len(scopes))})", scopes))
        where = " AND ".join(clause for clause, _ in wanted) or "1"
        rows = self.connection.execute(
            f"SELECT * FROM items WHERE {where} ORDER BY created_at, rowid",
            [value for _, values in wanted for value in values],
        )
        return [
            Item(
                row["type"],
                row["scope"],
                row["id"],
                row["name"],
                json.loads(row["inputs"]),
                json.loads(row["outputs"]),
                row["created_at"],
            )
            for row in rows
        ]

    def put_pending(self, item: Item) -> None:
        """Keeps a deleted item as scheduled for deletion: nobody sees it, but its name may still be
        taken."""
        self.put(replace(item, scope=_PENDING + item.scope))

    def pending(self, type: str | None = None, scope: str | None = None) -> list[Item]:
        """Items that wait for their deletion."""
        rows = self.connection.execute(
            "SELECT DISTINCT scope FROM items WHERE scope LIKE ?", (f"{_PENDING}%",)
        )
        scopes = tuple(
            row["scope"] for row in rows if scope is None or row["scope"] == _PENDING + scope
        )
        return self.items(type=type, scopes=scopes) if scopes else []

    def record(  # noqa: PLR0917 the columns of a line
        self, operation: str, type: str, scope: str, id: str, name: str, outcome: str
    ) -> None:
        """Writes a line into the books. Lines are never changed."""
        self.connection.execute(
            "INSERT INTO calls (at, process, operation, type, scope, id, name, outcome) VALUES"
            " (?,?,?,?,?,?,?,?)",
            (time.time(), os.getpid(), operation, type, scope, id, name, outcome),
        )

    def calls(self) -> list[Call]:
        return [
            Call(**dict(row))
            for row in self.connection.execute("SELECT * FROM calls ORDER BY number")
        ]

    def assume(self, parent: str, type: str, name: str, reason: str) -> None:
        """Notes that a component's child was made by assumption, not by its real program."""
        self.connection.execute(
            "INSERT OR IGNORE INTO assumed (parent, type, name, reason) VALUES (?,?,?,?)",
            (parent, type, name, reason),
        )

    def assumed(self) -> list[dict[str, Any]]:
        return [
            dict(row) for row in self.connection.execute("SELECT * FROM assumed ORDER BY number")
        ]

    def reset(self) -> None:
        """Forgets everything."""
        with self.transaction():
            for table in ("items", "calls", "faults", "assumed"):
                self.connection.execute(f"DELETE FROM {table}")
