"""Database and role of the guard on a server that is managed like RDS's.

It speaks TLS, asks for SCRAM passwords, and its administrator is no superuser.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.postgres import Postgres

from terrace_gateway.database_role import (
    RoleError,
    RoleSettings,
    checked,
    ensure_role,
)
from terrace_gateway.settings import SettingsError

ADMIN = "managed_admin"
ADMIN_PASSWORD = "canary-admin-password"
ROLE_PASSWORD = "canary-role-password"
HBA = """local all all trust
host all postgres 127.0.0.1/32 trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""


class ManagedPostgres(Postgres):
    """As RDS is: TLS only (but for the test's own superuser), and an administrator with rights to
    make roles and databases."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ca = folder / "server.crt"

    def create(self) -> None:
        super().create()
        key, data = self._folder / "server.key", self._data
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
             "subjectAltName=DNS:localhost", "-keyout", key, "-out", self.ca],
            check=True, capture_output=True,
        )  # fmt: skip
        for file in (key, self.ca):
            os.chown(file, self._user.get("user", -1), self._user.get("group", -1))
        self.ca.chmod(0o644)
        self._folder.chmod(0o755)
        key.chmod(0o600)
        (data / "pg_hba.conf").write_text(HBA)
        with self.superuser() as connection:
            connection.execute("DROP ROLE gateway")
            connection.execute(
                f"CREATE ROLE {ADMIN} LOGIN CREATEDB CREATEROLE PASSWORD '{ADMIN_PASSWORD}'"
            )
            for setting, value in (
                ("ssl", "on"), ("ssl_cert_file", self.ca), ("ssl_key_file", key),
                ("log_statement", "all"),
            ):  # fmt: skip
                connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        self._until_reloaded()

    def _until_reloaded(self) -> None:
        """The server has read its settings once who connects anew sees them."""
        deadline = time.monotonic() + 60
        while True:
            with self.superuser() as connection:
                if connection.execute("SELECT current_setting('ssl')").fetchone() == ("on",):
                    return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[ManagedPostgres]:
    with tempfile.TemporaryDirectory(prefix="terrace-managed-") as folder:
        managed = ManagedPostgres(Path(folder))
        managed.create()
        yield managed
        managed.stop()


@pytest.fixture
def managed(server: ManagedPostgres) -> Iterator[ManagedPostgres]:
    yield server
    if not server.running:
        server.start()
    with server.superuser() as connection:
        connection.execute("DROP DATABASE IF EXISTS terrace WITH (FORCE)")
        for role in ("gateway", "other"):
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                connection.execute(f"DROP OWNED BY {role}")
                connection.execute(f"DROP ROLE {role}")


Make = Callable[..., dict[str, Any]]


@pytest.fixture
def values(managed: ManagedPostgres, tmp_path: Path) -> Make:
    def make(**overrides: Any) -> dict[str, Any]:
        files = {
            "database_admin_username_file": ADMIN,
            "database_admin_password_file": ADMIN_PASSWORD,
            "database_role_password_file": ROLE_PASSWORD,
        }
        paths: dict[str, Any] = {}
        for name, text in files.items():
            paths[name] = tmp_path / name
            paths[name].write_text(overrides.pop(f"{name}_text", text))
        return {
            "database_host": "localhost",
            "database_port": managed.port,
            "database_sslmode": "verify-full",
            "database_sslrootcert": managed.ca,
            "database_wait_seconds": 0,
            **paths,
            **overrides,
        }

    return make


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def ensure(values: Make, said: list[str]) -> Callable[..., None]:
    def run(**overrides: Any) -> None:
        ensure_role(checked(RoleSettings(**values(**overrides))), say=said.append)

    return run


def as_role(managed: ManagedPostgres, database: str = "terrace") -> psycopg.Connection[Any]:
    return psycopg.connect(
        host="localhost", port=managed.port, user="gateway", password=ROLE_PASSWORD,
        dbname=database, sslmode="verify-full", sslrootcert=str(managed.ca), autocommit=True,
    )  # fmt: skip


def snapshot(managed: ManagedPostgres) -> Any:
    """Everything that a run may change, except the salt of the verifier."""
    with managed.superuser() as connection:
        roles = connection.execute(
            "SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,"
            " rolbypassrls, rolinherit FROM pg_roles WHERE rolname !~ '^pg_' ORDER BY 1"
        ).fetchall()
        databases = connection.execute(
            "SELECT datname, pg_get_userbyid(datdba), datacl::text FROM pg_database ORDER BY 1"
        ).fetchall()
        members = connection.execute(
            "SELECT roleid::regrole, member::regrole FROM pg_auth_members "
            "WHERE member::regrole::text = 'gateway'"
        ).fetchall()
    with managed.superuser("terrace") as connection:
        schema = connection.execute(
            "SELECT nspacl::text, pg_get_userbyid(nspowner) FROM pg_namespace"
            " WHERE nspname = 'public'"
        ).fetchall()
    return roles, databases, members, schema


def test_the_role_can_log_in_and_has_no_more_than_it_needs(
    ensure: Callable[..., None], managed: ManagedPostgres
) -> None:
    ensure()
    roles, databases, members, _schema = snapshot(managed)
    assert ("gateway", False, False, False, True, False, False, True) in roles
    [(_, owner, grants)] = [d for d in databases if d[0] == "terrace"]
    assert owner == ADMIN
    assert members == []
    assert f"gateway=c/{ADMIN}" in grants
    # No grant to everybody: an entry without a name before "=".
    assert not any(entry.startswith("=") for entry in grants.strip("{}").split(","))
    with as_role(managed) as connection:
        connection.execute("CREATE TABLE made (n integer)")
        for statement in (
            "CREATE SCHEMA another", "CREATE ROLE another", "CREATE DATABASE another",
            "CREATE TEMPORARY TABLE t (n integer)", "DROP SCHEMA public CASCADE",
            "ALTER ROLE gateway CREATEDB",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_a_stranger_can_not_even_connect(
    ensure: Callable[..., None], managed: ManagedPostgres
) -> None:
    ensure()
    with managed.superuser() as connection:
        connection.execute(f"CREATE ROLE other LOGIN PASSWORD '{ROLE_PASSWORD}'")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(
            host="localhost", port=managed.port, user="other", password=ROLE_PASSWORD,
            dbname="terrace",
        )  # fmt: skip


async def test_the_guard_works_with_that_role(
    ensure: Callable[..., None], managed: ManagedPostgres, make_guard: Any, tmp_path: Path
) -> None:
    """Migrations, a reservation, a settlement, an audit row: all of it over verified TLS."""
    ensure()
    url = tmp_path / "managed-url"
    url.write_text(
        f"postgresql://gateway:{ROLE_PASSWORD}@localhost:{managed.port}/terrace"
        f"?sslmode=verify-full&sslrootcert={managed.ca}"
    )
    guard = await make_guard(database_url_file=url)
    key = await guard.key()
    answer = await guard.chat(key)
    assert answer.status_code == 200, answer.text
    [entry] = await guard.entries()
    assert entry["outcome"] == "ok"
    with managed.superuser("terrace") as connection:
        owners = connection.execute(
            "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        encrypted = connection.execute(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
            " WHERE application_name = 'terrace-gateway'"
        ).fetchall()
    assert (owners, encrypted) == ([("gateway",)], [(True,)])


def test_again_changes_nothing_and_needs_no_administrator(
    ensure: Callable[..., None], managed: ManagedPostgres, said: list[str]
) -> None:
    ensure()
    before = snapshot(managed)
    said.clear()
    ensure(database_admin_password_file=Path("/nowhere"))
    assert said == ["role gateway can work already; nothing was changed"]
    assert snapshot(managed) == before


def test_a_new_password_of_the_secret_is_set(
    ensure: Callable[..., None], managed: ManagedPostgres
) -> None:
    ensure(database_role_password_file_text="canary-older-password")
    with pytest.raises(psycopg.OperationalError):
        as_role(managed)
    before = snapshot(managed)
    ensure()
    as_role(managed).close()
    assert snapshot(managed) == before


@pytest.mark.parametrize(
    "broken",
    [
        "REVOKE CREATE ON SCHEMA public FROM gateway",
        "REVOKE CONNECT ON DATABASE terrace FROM gateway",
        "ALTER ROLE gateway NOLOGIN",
    ],
)
def test_what_was_taken_away_comes_back(
    ensure: Callable[..., None], managed: ManagedPostgres, broken: str
) -> None:
    ensure()
    before = snapshot(managed)
    with managed.superuser("terrace") as connection:
        connection.execute(broken)
    assert snapshot(managed) != before
    ensure()
    assert snapshot(managed) == before


def test_tables_and_rows_survive(ensure: Callable[..., None], managed: ManagedPostgres) -> None:
    ensure()
    with as_role(managed) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    ensure(database_role_password_file_text="canary-next-password")
    with managed.superuser("terrace") as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


@pytest.mark.parametrize("power", ["CREATEDB", "CREATEROLE", "SUPERUSER", "BYPASSRLS"])
def test_a_role_with_too_much_power_is_refused(
    ensure: Callable[..., None], managed: ManagedPostgres, power: str
) -> None:
    with managed.superuser() as connection:
        connection.execute(f"CREATE ROLE gateway {power}")
    with pytest.raises(RoleError, match=f"has rol{power.lower()[:5]}.*which the guard must not"):
        ensure()


async def test_runs_at_the_same_time_end_the_same(values: Make, managed: ManagedPostgres) -> None:
    environment = {
        f"TERRACE_{name.upper()}": str(value)
        for name, value in values(database_wait_seconds=30).items()
    }
    runs = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "terrace_gateway.database_role",
            env={"PATH": os.environ["PATH"], **environment},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        for _ in range(5)
    ]  # fmt: skip
    said = [(await run.communicate())[0].decode() for run in runs]
    assert [run.returncode for run in runs] == [0] * 5, said
    assert sum("role gateway: created" in text for text in said) == 1
    assert sum("database terrace: created" in text for text in said) == 1
    as_role(managed).close()
    assert "canary" not in "".join(said)


def test_the_server_never_sees_the_password(
    ensure: Callable[..., None], managed: ManagedPostgres, said: list[str]
) -> None:
    """It logs every statement, as an auditor of RDS may ask it to."""
    before = len(managed.log)
    ensure()
    log = managed.log[before:]
    assert "ALTER ROLE" in log
    assert "SCRAM-SHA-256" in log
    assert "canary" not in log
    assert "canary" not in "".join(said)


def test_it_waits_for_a_server_that_is_not_there_yet(
    values: Make, managed: ManagedPostgres, said: list[str]
) -> None:
    settings = checked(RoleSettings(**values(database_wait_seconds=60)))
    managed.stop()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            managed.start()

    ensure_role(settings, say=said.append, pause=pause)
    assert len(pauses) == 3
    as_role(managed).close()


def test_it_gives_up_on_a_server_that_stays_away(values: Make, said: list[str]) -> None:
    now = iter(range(0, 1000, 10))
    settings = checked(RoleSettings(**values(database_port=1, database_wait_seconds=25)))
    pauses: list[float] = []
    with pytest.raises(RoleError, match="localhost: OperationalError") as raised:
        ensure_role(settings, say=said.append, pause=pauses.append, clock=lambda: next(now))
    assert len(pauses) == 2
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"database_admin_password_file_text": "canary-wrong"}, "password authentication failed"),
        ({"database_admin_username_file_text": "nobody"}, "authentication failed"),
        ({"database_sslmode": "disable"}, "no pg_hba.conf entry"),
        ({"database_sslrootcert": "other"}, "certificate verify failed"),
        ({"database_host": "127.0.0.1"}, "does not match host name"),
    ],
)
def test_what_waiting_does_not_heal_is_told_at_once(
    ensure: Callable[..., None], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    if changes.get("database_sslrootcert"):
        other = tmp_path / "other.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=other", "-keyout", tmp_path / "k",
             "-out", other],
            check=True, capture_output=True,
        )  # fmt: skip
        changes = {"database_sslrootcert": other}
    with pytest.raises(RoleError, match=message) as raised:
        ensure(database_wait_seconds=1000, **changes)
    assert "canary" not in str(raised.value)


def test_an_administrator_without_rights_is_told(
    ensure: Callable[..., None], managed: ManagedPostgres
) -> None:
    with managed.superuser() as connection:
        connection.execute(f"CREATE ROLE other LOGIN PASSWORD '{ADMIN_PASSWORD}'")
    with pytest.raises(RoleError, match="InsufficientPrivilege: permission denied to create role"):
        ensure(database_admin_username_file_text="other")


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
def test_a_remote_host_is_never_reached_without_tls(values: Make, mode: str) -> None:
    settings = RoleSettings(**values(database_host="db.example.com", database_sslmode=mode))
    with pytest.raises(SettingsError, match=r"in clear to db\.example\.com; use one of require"):
        checked(settings)


def test_a_verified_server_needs_certificates(values: Make) -> None:
    settings = RoleSettings(**values(database_sslrootcert=None))
    with pytest.raises(SettingsError, match="TERRACE_DATABASE_SSLROOTCERT: is required"):
        checked(settings)


def test_exit_codes_as_a_program(values: Make) -> None:
    def run(**more: Any) -> subprocess.CompletedProcess[str]:
        environment = {f"TERRACE_{name.upper()}": str(value) for name, value in more.items()}
        return subprocess.run(
            [sys.executable, "-m", "terrace_gateway.database_role"],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    nothing = run()
    assert nothing.returncode == 2
    assert "TERRACE_DATABASE_HOST: Field required" in nothing.stderr
    unnamed = run(**values(database_name="no; drop"))
    assert unnamed.returncode == 2
    missing = run(**values(database_role_password_file="/nowhere"))
    assert missing.returncode == 2
    assert "/nowhere: cannot read the role's password" in missing.stderr
    wrong = run(**values(database_admin_password_file_text="canary-wrong"))
    assert wrong.returncode == 1
    for done in (nothing, unnamed, missing, wrong):
        assert "Traceback" not in done.stderr
        assert "canary" not in done.stderr
    assert run(**values()).returncode == 0
