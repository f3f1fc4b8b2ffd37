"""``python -m terrace_gateway.database_role``: database and login role of the guard, where Postgres
is managed.

It first tries to log in as the role: if that works and the rights are there, nothing is done and
nobody's password but the role's own is needed. Else it connects as the administrator, makes what
is missing and logs in again to prove it. It may run at any time, any number of times, also twice at
once. The role gets what the guard needs and no more: it may connect to its database and make
things in its schema ``public``; it owns neither.

Exit codes: 0 the role can work, 1 the server refused or did not answer, 2 wrong settings.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from terrace_gateway.settings import SECRETS, SettingsError, read_secret

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
TLS_MODES = frozenset({"require", "verify-ca", "verify-full"})
MAINTENANCE_DATABASE = "postgres"
CONNECT_TIMEOUT_SECONDS = 5
STATEMENT_TIMEOUT = "60s"
PAUSE_SECONDS = 2
_LOCK = 0x7E44ACE2
# What a role may have that a guard must not: each opens a way past the database's own rules.
_TOO_MUCH = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
# Words of the server, or of libpq, that waiting does not change; before login an error has no code.
_FINAL = (
    "authentication failed",
    "does not exist",
    "not permitted",
    "permission denied",
    "no pg_hba.conf entry",
    "does not support SSL",
    "certificate verify failed",
    "does not match host name",
    "invalid sslmode",
)
_AWAY = ("08", "57P", "53")
_NAME = r"^[a-z_][a-z0-9_]{0,62}$"

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
Connection = psycopg.Connection[tuple[Any, ...]]


class RoleError(Exception):
    """The server refused or is not as it must be. The message holds no password."""


class RoleSettings(BaseSettings):
    """Where the server is and who is who; prefix ``TERRACE_``, passwords are files."""

    model_config = SettingsConfigDict(env_prefix="TERRACE_", frozen=True)

    database_host: str = Field(min_length=1)
    database_port: int = Field(default=5432, ge=1, le=65535)
    database_name: str = Field(default="terrace", pattern=_NAME)
    database_role: str = Field(default="gateway", pattern=_NAME)
    database_sslmode: SslMode = "require"
    """``verify-full`` needs ``database_sslrootcert``. A host other than this machine is never
    reached without TLS."""
    database_sslrootcert: Path | None = None
    """Certificates that the server's is checked against; of RDS, its bundle of the region."""
    database_admin_username_file: Path = Path("/run/secrets/terrace-admin/username")
    database_admin_password_file: Path = Path("/run/secrets/terrace-admin/password")
    database_role_password_file: Path = SECRETS / "gateway-password"
    database_wait_seconds: float = Field(default=120, ge=0)
    """How long a server that is not there yet is waited for."""


def checked(settings: RoleSettings) -> RoleSettings:
    """The settings, if they fit together. Raises ``SettingsError``."""
    mode, host = settings.database_sslmode, settings.database_host
    local = host in LOCAL_HOSTS or host.startswith("/")
    if not local and mode not in TLS_MODES:
        raise SettingsError(
            f"TERRACE_DATABASE_SSLMODE: {mode} may send passwords in clear to {host};"
            f" use one of {', '.join(sorted(TLS_MODES))}"
        )
    if mode.startswith("verify") and settings.database_sslrootcert is None:
        raise SettingsError(
            f"TERRACE_DATABASE_SSLROOTCERT: is required for sslmode {mode}: the file with the"
            " certificates that the server's is checked against"
        )
    return settings


def ensure_role(
    settings: RoleSettings,
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Makes sure that the role can do the guard's work. Raises ``RoleError``, ``SettingsError``."""
    password = SecretStr(read_secret(settings.database_role_password_file, "role's password"))
    deadline = clock() + settings.database_wait_seconds
    while True:
        try:
            missing = _what_the_role_lacks(settings, password)
            if not missing:
                say(f"role {settings.database_role} can work already; nothing was changed")
                return
            say(f"{missing}; going on as the administrator")
            _make(settings, password, say)
        except psycopg.Error as error:
            reason = _reason(error)
            if not _is_away(error):
                raise RoleError(reason) from None
        else:
            break
        if clock() >= deadline:
            raise RoleError(f"{settings.database_host}: {reason}")
        pause(PAUSE_SECONDS)
    missing = _what_the_role_lacks(settings, password)
    if missing:
        raise RoleError(f"{missing}, though the administrator made it so")
    say(f"role {settings.database_role} can log in to database {settings.database_name}")


def _connect(settings: RoleSettings, database: str, user: str, password: SecretStr) -> Connection:
    root = settings.database_sslrootcert
    return psycopg.connect(
        host=settings.database_host,
        port=settings.database_port,
        dbname=database,
        user=user,
        password=password.get_secret_value(),
        sslmode=settings.database_sslmode,
        sslrootcert=None if root is None else str(root),
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        application_name="terrace-database-role",
        options=f"-c statement_timeout={STATEMENT_TIMEOUT} -c timezone=UTC",
        autocommit=True,
    )


def _what_the_role_lacks(settings: RoleSettings, password: SecretStr) -> str:
    """Why the role can not work yet; empty if it can. A server that is away raises."""
    role, database = settings.database_role, settings.database_name
    try:
        connection = _connect(settings, database, role, password)
    except psycopg.OperationalError as error:
        if _is_away(error):
            raise
        return f"role {role} can not log in to database {database} yet ({_reason(error)})"
    with connection:
        row = connection.execute(
            "SELECT has_schema_privilege('public', 'CREATE'),"
            " has_schema_privilege('public', 'USAGE')"
        ).fetchone()
        _refuse_too_much(connection, role)
    return "" if row == (True, True) else f"role {role} may not make things in schema public"


def _refuse_too_much(connection: Connection, role: str) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, _TOO_MUCH))
    row = connection.execute(
        sql.SQL("SELECT {} FROM pg_roles WHERE rolname = %s").format(columns), (role,)
    ).fetchone()
    held = [name for name, has in zip(_TOO_MUCH, row or (), strict=False) if has]
    if held:
        raise RoleError(
            f"role {role} has {', '.join(held)}, which the guard must not have;"
            f" take it away (ALTER ROLE {role} NO...) or name another role"
        )


def _make(settings: RoleSettings, password: SecretStr, say: Callable[[str], None]) -> None:
    admin = read_secret(settings.database_admin_username_file, "administrator's name")
    secret = SecretStr(
        read_secret(settings.database_admin_password_file, "administrator's password")
    )
    database = settings.database_name
    with _connect(settings, MAINTENANCE_DATABASE, admin, secret) as connection:
        # One run at a time. It ends with the session, however that ends.
        connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        _role(connection, settings.database_role, password, say)
        _database(connection, database, settings.database_role, say)
        with _connect(settings, database, admin, secret) as inside:
            _schema(inside, settings.database_role)


def _exists(connection: Connection, query: str, name: str) -> bool:
    return connection.execute(query.encode(), (name,)).fetchone() is not None


def _role(
    connection: Connection, role: str, password: SecretStr, say: Callable[[str], None]
) -> None:
    if _exists(connection, "SELECT FROM pg_roles WHERE rolname = %s", role):
        _refuse_too_much(connection, role)
    else:
        try:
            connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
            say(f"role {role}: created")
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            say(f"role {role}: was created by another")
    # The verifier is made here: the server, and whatever logs its statements, never sees the
    # password.
    verifier = connection.pgconn.encrypt_password(
        password.get_secret_value().encode(), role.encode(), b"scram-sha-256"
    ).decode()
    connection.execute(
        sql.SQL("ALTER ROLE {} WITH LOGIN PASSWORD {}").format(
            sql.Identifier(role), sql.Literal(verifier)
        )
    )
    say(f"role {role}: may log in with the password of its Secret")


def _database(connection: Connection, database: str, role: str, say: Callable[[str], None]) -> None:
    name = sql.Identifier(database)
    if not _exists(connection, "SELECT FROM pg_database WHERE datname = %s", database):
        try:
            # template0: nobody can be connected to it, which CREATE DATABASE would refuse.
            connection.execute(
                sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(name)
            )
            say(f"database {database}: created")
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            say(f"database {database}: was created by another")
    connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
    connection.execute(
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, sql.Identifier(role))
    )


def _schema(connection: Connection, role: str) -> None:
    connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    connection.execute(
        sql.SQL("GRANT USAGE, CREATE ON SCHEMA public TO {}").format(sql.Identifier(role))
    )


def _is_away(error: psycopg.Error) -> bool:
    """Whether the server may answer better when it is asked again."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY)
    return isinstance(error, psycopg.OperationalError) and not any(
        words in str(error) for words in _FINAL
    )


def _reason(error: psycopg.Error) -> str:
    """The server's message without the statement that it may quote."""
    text = error.diag.message_primary or str(error).strip().splitlines()[0]
    return f"{type(error).__name__}: {text}"


def main() -> int:
    """Run once, for a Job."""
    try:
        settings = checked(RoleSettings())  # pyright: ignore[reportCallIssue]  from the environment
        ensure_role(settings, say=_say)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            _say(f"TERRACE_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}")
        return 2
    except SettingsError as error:
        _say(str(error))
        return 2
    except RoleError as error:
        _say(str(error))
        return 1
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"database-role: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
