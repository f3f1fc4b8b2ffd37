"""A PostgreSQL server of the test session's own, stoppable and startable on the same port."""

import asyncio
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr

from terrace_gateway.database import Database

PASSWORD = "canary-database-password"
TEMPLATE = "migrated"
FIRST_PORT, PORTS_EACH, PORT_RANGES = 20_000, 2_500, 4
_GIVEN: deque[int] = deque(maxlen=1_000)


def binaries() -> Path:
    """Folder of initdb and postgres (15 or newer)."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    if found is None:
        raise RuntimeError(
            "the service tests need PostgreSQL; see tests/service/install-postgres.sh"
        )
    return Path(found).resolve().parent


def free_port() -> int:
    """A port that is free now.

    Below the range that the kernel gives to clients, apart for each test process, and none of those
    that were given last, so that nobody takes it before it is used.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PORT_RANGES
    first = FIRST_PORT + worker * PORTS_EACH
    while True:
        port = first + secrets.randbelow(PORTS_EACH)
        if port in _GIVEN:
            continue
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            _GIVEN.append(port)
            return port


class Postgres:
    """One cluster in ``folder``, run as an unprivileged user when the tests run as root."""

    def __init__(self, folder: Path) -> None:
        self._bin = binaries()
        self._folder = folder
        self._data = folder / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        self._template = False
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def create(self) -> None:
        """Initialise and start; make the gateway's role, which is no superuser."""
        subprocess.run(
            [self._bin / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
             "--locale", "C.UTF-8", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd="/", **self._user,
        )  # fmt: skip
        self.start()
        with self.superuser() as connection:
            connection.execute(f"CREATE ROLE gateway LOGIN PASSWORD '{PASSWORD}'")

    def start(self) -> None:
        """Start and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-k", self._folder, "-p",
                 str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100"],
                stdout=log, stderr=log, cwd="/", **self._user,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                self.superuser().close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop (fast by default) and wait."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(120)
            self._process = None

    def log_text(self) -> str:
        """What the server has logged."""
        return (self._folder / "log").read_text("utf-8", "replace")

    @property
    def running(self) -> bool:
        return self._process is not None

    def new_database(self, name: str, *, empty: bool = False) -> None:
        """A database of the gateway's: a copy of one with all migrations, or an empty one."""
        if not self.running:
            self.start()
        if not empty and not self._template:
            self._make_template()
        template = "template1" if empty else TEMPLATE
        with self.superuser() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER gateway")

    def drop_database(self, name: str) -> None:
        """With whoever is connected to it."""
        if not self.running:
            self.start()
        with self.superuser() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _make_template(self) -> None:
        async def migrate() -> None:
            database = Database(SecretStr(self.url(TEMPLATE)), size=2, wait_seconds=2)
            await database.prepare()
            await database.close()

        self.new_database(TEMPLATE, empty=True)
        with ThreadPoolExecutor(1) as thread:  # the caller may be in a loop of its own
            thread.submit(asyncio.run, migrate()).result()
        with self.superuser() as connection:  # or autovacuum could be in the way of a copy
            connection.execute(f"ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false")
        self._template = True

    def superuser(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A superuser's connection in autocommit mode."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True,
            connect_timeout=30,
        )  # fmt: skip

    def url(self, database: str) -> str:
        """What the gateway gets."""
        return f"postgresql://gateway:{PASSWORD}@127.0.0.1:{self.port}/{database}"
