"""A primary and a standby that follows it, to be failed over."""

import os
import pwd
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from gateway_rig.postgres import Postgres, binaries


class Pair:
    """Both are up when it is made; database ``guarded`` belongs to the gateway."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        places = [folder / name for name in ("primary", "standby")]
        for place in places:
            place.mkdir()
        self.primary, self.standby = (Postgres(place) for place in places)
        self.primary.create()
        with self.primary.superuser() as connection:
            connection.execute("CREATE DATABASE guarded OWNER gateway")
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        subprocess.run(
            [binaries() / "pg_basebackup", "-h", "127.0.0.1", "-p", str(self.primary.port), "-U",
             "postgres", "-D", places[1] / "data", "-R", "-c", "fast", "--no-sync"],
            check=True, cwd="/", **user,
        )  # fmt: skip
        self.standby.start()

    def catch_up(self) -> None:
        """Wait until the standby has replayed what the primary has written by now."""
        with self.primary.superuser() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        if row is None:
            raise RuntimeError("no position")
        deadline = time.monotonic() + 60
        with self.standby.superuser() as connection:
            while connection.execute(
                "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (row[0],)
            ).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise TimeoutError("the standby does not follow")
                time.sleep(0.02)

    def fail_over(self) -> None:
        """The primary dies; the standby takes its place on a new time line."""
        self.primary.stop(signal.SIGQUIT)
        with self.standby.superuser() as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def stop(self) -> None:
        """Both."""
        for server in (self.primary, self.standby):
            server.stop()
