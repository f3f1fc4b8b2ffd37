"""Only a calendar window has a zone: what somebody gave with another makes no second cap of it."""

import hashlib

from gateway_rig.admin import admin_of
from gateway_rig.policy import example_text, replica_of
from gateway_rig.postgres import Postgres
from psycopg import AsyncConnection
from pydantic import SecretStr

from terrace_gateway.database import Database, migration_files

# As a guard of the release before writes one that somebody set with PUT /caps.
SET = (
    "INSERT INTO cap (scope, scope_id, dimension, window_kind, window_seconds, window_unit,"
    " window_zone, amount) VALUES ('team', 'team-a', %s, %s, %s, %s, 'Europe/Berlin', 10)"
)
CAPS = [
    ("requests", "lifetime", 0, None), ("requests", "fixed", 60, None),
    ("micro_usd", "rolling", 60, "day"), ("output_tokens", "calendar", 0, "day"),
]  # fmt: skip
NORMAL = [
    ("requests", "lifetime", None, "UTC"), ("requests", "fixed", None, "UTC"),
    ("micro_usd", "rolling", None, "UTC"), ("output_tokens", "calendar", "day", "Europe/Berlin"),
]  # fmt: skip
ROWS = "SELECT dimension, window_kind, window_unit, window_zone FROM cap ORDER BY cap_id"
DECLARED = """
teams: [{name: team-a, quotas: [{dimension: requests, amount: 1000, per: lifetime}]}]
"""


async def test_rows_of_the_release_before_are_made_right(
    postgres: Postgres, empty_database: str
) -> None:
    url = postgres.url(empty_database)
    async with await AsyncConnection.connect(url) as connection:
        await connection.execute(
            "CREATE TABLE schema_migration (version integer PRIMARY KEY, name text NOT NULL,"
            " checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        for name, text in migration_files():
            if name >= "0014":
                break
            await connection.execute(text.encode())
            await connection.execute(
                "INSERT INTO schema_migration (version, name, checksum) VALUES (%s, %s, %s)",
                (int(name[:4]), name, hashlib.sha256(text.encode()).hexdigest()),
            )
        for cap in CAPS:
            await connection.execute(SET, cap)
    with postgres.superuser(empty_database) as reader:
        before = reader.execute(ROWS).fetchall()
        epochs = "SELECT epoch FROM policy_head"
        [(epoch,)] = reader.execute(epochs).fetchall()
        assert {row[3] for row in before} == {"Europe/Berlin"}
        database = Database(SecretStr(url), size=2, wait_seconds=2)
        await database.prepare()
        await database.close()
        assert reader.execute(ROWS).fetchall() == NORMAL
        assert reader.execute(epochs).fetchall() == [(epoch + 1,)]  # guards hear of it


async def test_writers_of_the_release_before_are_put_right(
    postgres: Postgres, database: str
) -> None:
    with postgres.superuser(database) as connection:
        for cap in CAPS:
            connection.execute(SET.encode(), cap)
        assert connection.execute(ROWS).fetchall() == NORMAL


async def test_a_declared_cap_stays_declared(postgres: Postgres, database: str) -> None:
    """Somebody set it at run time, with a zone; then the spec has it, and versions come and go."""
    with postgres.superuser(database) as connection:
        connection.execute(SET.encode(), CAPS[0])
    async with replica_of(postgres, database) as replica:
        await replica.apply(example_text())
        await replica.feed.refresh()
        async with admin_of(replica) as admin:
            text = example_text() + DECLARED
            plan = await admin.ok("POST", "/governance/plan", {"text": text})
            assert plan["blocking"] == ["cap-set-at-runtime"]
        await replica.apply(text, allow=["cap-set-at-runtime"])
        for number in range(3):
            await replica.apply(f"{text}# {number}\n")
            with postgres.superuser(database) as connection:
                rows = connection.execute(
                    "SELECT amount, origin, retired_at FROM cap WHERE scope = 'team'"
                ).fetchall()
            assert rows == [(1000, "declared", None)]
