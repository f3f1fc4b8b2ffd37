"""Virtual keys: whose they are, what they may do, how they end and how their secrets change."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from gateway_rig.admin import Admin
from gateway_rig.policy import Replica, example_text
from gateway_rig.postgres import Postgres

from terrace_gateway.edge.errors import ApiError

SPEC = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}, {name: team-b, org: acme}]
users: [{name: jo, team: team-b}]
apps: [{name: bot, team: team-b, user: jo}]
keys: [{name: bot-prod, app: bot, models: [sim-small]}]
policies: [{name: short, max_output_tokens: 7}]
"""


async def status_of(replica: Replica, key: str) -> int:
    try:
        principal = await replica.call(key)
    except ApiError as error:
        return error.status
    assert principal is not None
    return 200


async def declare(replica: Replica) -> None:
    await replica.apply(example_text() + SPEC)
    await replica.feed.refresh()


async def test_a_key_of_an_app_belongs_to_its_team_and_org(admin: Admin, replica: Replica) -> None:
    await declare(replica)
    made = await admin.ok("POST", "/keys", {"app": "bot", "policies": ["short"]})
    assert (made["team"], made["app"], made["policies"]) == ("team-b", "bot", ["short"])
    principal = await replica.call(made["key"])
    assert principal is not None
    assert (principal.caller.org, principal.caller.user) == ("acme", "jo")
    assert principal.policy.max_output_tokens == 7


async def test_scopes_narrow_models_features_and_surfaces(admin: Admin, replica: Replica) -> None:
    made = await admin.ok(
        "POST", "/keys",
        {"team": "t", "models": ["sim-small"], "features": ["streaming"], "surfaces": ["chat"]},
    )  # fmt: skip
    principal = await replica.call(made["key"])
    assert principal is not None
    assert principal.policy.models == {"sim-small"}
    assert principal.policy.denied_features == {
        "tools", "images", "json_schema", "reasoning", "embeddings",
    }  # fmt: skip
    assert principal.surfaces == {"chat"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "team"),
        ({"team": "team-c"}, "team 'team-c' is not declared; declared: team-a, team-b"),
        ({"app": "nobody"}, "app 'nobody' is not declared; declared: bot"),
        ({"user": "nobody"}, "declared: jo"),
        ({"app": "bot", "team": "team-a"}, "belongs to team 'team-b'"),
        ({"team": "team-a", "policies": ["none"]}, "declared: short"),
        ({"team": "team-a", "surfaces": ["fax"]}, "surfaces"),
        ({"name": "bot-prod", "app": "bot"}, "declared key"),
    ],
)
async def test_wrong_owners_are_explained(
    admin: Admin, replica: Replica, body: dict[str, Any], message: str
) -> None:
    await declare(replica)
    status, answer = await admin.error("POST", "/keys", body)
    assert status == 400
    assert message in answer["error"]["message"]


async def test_a_declared_key_has_one_live_secret_and_keeps_its_budget(
    admin: Admin, replica: Replica
) -> None:
    await declare(replica)
    made = await admin.ok("POST", "/keys", {"name": "bot-prod"})
    assert (made["declared"], made["team"]) == ("bot-prod", "team-b")
    principal = await replica.call(made["key"])
    assert principal is not None
    assert principal.policy.models == {"sim-small"}
    status, answer = await admin.error("POST", "/keys", {"name": "bot-prod"})
    assert (status, answer["error"]["code"]) == (409, "conflict")
    await admin.ok("POST", f"/keys/{made['key_id']}/revoke", {})
    again = await admin.ok("POST", "/keys", {"name": "bot-prod"})
    assert again["key_id"] != made["key_id"]
    assert await status_of(replica, made["key"]) == 401
    assert await status_of(replica, again["key"]) == 200


async def test_of_mints_of_a_declared_key_at_once_one_wins(admin: Admin, replica: Replica) -> None:
    await declare(replica)
    answers = await asyncio.gather(
        *(admin.send("POST", "/keys", {"name": "bot-prod"}) for _ in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]


async def test_rotation_overlaps(admin: Admin, replica: Replica) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t", "budget_micro_usd": 5})
    new = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {"overlap_seconds": 60})
    assert new["key_id"] == made["key_id"]
    assert new["key"] != made["key"]
    assert new["budget_micro_usd"] == 5
    first, second = await replica.call(made["key"]), await replica.call(new["key"])
    assert first is not None
    assert first is second  # one caller, one set of caps
    replica.clock.forward(61)
    await replica.feed.refresh()
    replica.clock.hear(datetime.now(UTC) + timedelta(seconds=61), sent_at=replica.clock.seconds)
    assert await replica_status_now(replica, made["key"]) == 401
    assert await replica_status_now(replica, new["key"]) == 200


async def replica_status_now(replica: Replica, key: str) -> int:
    """Without a question to the database, which would set the clock right."""
    from gateway_rig.policy import PEPPER

    from terrace_gateway.authentication.keys import hash_key

    found = replica.authenticator._find(replica.feed.current().snapshot, hash_key(PEPPER, key))
    return 200 if found is not None else 401


async def test_an_overlap_that_is_cut_short_is_over(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t"})
    new = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {"overlap_seconds": 600})
    assert await status_of(replica, made["key"]) == 200
    with postgres.superuser(database) as connection:
        connection.execute("UPDATE rotated_secret SET valid_until = clock_timestamp()")
    await replica.feed.refresh()
    assert await status_of(replica, made["key"]) == 401
    assert await status_of(replica, new["key"]) == 200


async def test_a_rotation_without_overlap_ends_the_old_secret_at_once(
    admin: Admin, replica: Replica
) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t"})
    new = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {})
    assert new["old_secret_expires_at"] is None
    assert await status_of(replica, made["key"]) == 401
    assert await status_of(replica, new["key"]) == 200


async def test_a_rotation_ends_the_secrets_of_earlier_ones_with_the_old_one(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t"})
    path = f"/keys/{made['key_id']}/rotate"
    month = 30 * 86400
    second = await admin.ok("POST", path, {"overlap_seconds": month})
    third = await admin.ok("POST", path, {"overlap_seconds": 600})
    with postgres.superuser(database) as connection:
        ends = connection.execute(
            "SELECT max(valid_until) <= clock_timestamp() + interval '600 seconds'"
            " FROM rotated_secret"
        ).fetchone()
    assert ends == (True,)
    secrets = [made["key"], second["key"], third["key"]]
    assert [await status_of(replica, key) for key in secrets] == [200] * 3
    last = await admin.ok("POST", path, {"overlap_seconds": 0})
    assert [await status_of(replica, key) for key in secrets] == [401] * 3
    assert await status_of(replica, last["key"]) == 200


async def test_revoking_ends_every_secret(admin: Admin, replica: Replica) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t"})
    secrets = [made["key"]]
    for _ in range(3):
        new = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {"overlap_seconds": 600})
        secrets.append(new["key"])
    assert [await status_of(replica, key) for key in secrets] == [200] * 4
    await admin.ok("POST", f"/keys/{made['key_id']}/revoke", {"reason": "leaked"})
    assert [await status_of(replica, key) for key in secrets] == [401] * 4
    status, _ = await admin.error("POST", f"/keys/{made['key_id']}/rotate", {})
    assert status == 404  # a revoked key does not come back


async def test_rotations_at_once_leave_every_answered_secret_valid(
    admin: Admin, replica: Replica
) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t"})
    path = f"/keys/{made['key_id']}/rotate"
    answers = await asyncio.gather(
        *(admin.ok("POST", path, {"overlap_seconds": 600}) for _ in range(5))
    )
    for answer in answers:
        assert await status_of(replica, answer["key"]) == 200


async def test_an_expired_key_is_refused_by_the_database_s_clock(
    admin: Admin, replica: Replica
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    made = await admin.ok("POST", "/keys", {"team": "t", "expires_at": soon})
    assert await replica_status_now(replica, made["key"]) == 200
    replica.clock.forward(31)  # no answer from the database meanwhile
    assert await replica_status_now(replica, made["key"]) == 401


async def test_pages_and_filters(admin: Admin, replica: Replica) -> None:
    await declare(replica)
    made = [
        (await admin.ok("POST", "/keys", {"team": "team-a", "name": f"n{number}"}))["key_id"]
        for number in range(5)
    ]
    other = (await admin.ok("POST", "/keys", {"app": "bot"}))["key_id"]
    seen: list[str] = []
    after = ""
    while True:
        page = await admin.ok("GET", f"/keys?team=team-a&limit=2{after}")
        seen += [row["key_id"] for row in page["keys"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == made
    assert [row["key_id"] for row in (await admin.ok("GET", "/keys?app=bot"))["keys"]] == [other]
    assert [r["key_id"] for r in (await admin.ok("GET", "/keys?name=n3"))["keys"]] == [made[3]]
    await admin.ok("POST", f"/keys/{made[0]}/revoke", {})
    live = (await admin.ok("GET", "/keys?team=team-a&live=true"))["keys"]
    assert [row["key_id"] for row in live] == made[1:]
    status, _ = await admin.error("GET", "/keys?live=maybe")
    assert status == 400
    assert (await admin.ok("GET", f"/keys/{other}"))["app"] == "bot"
    status, _ = await admin.error("GET", "/keys/key_none")
    assert status == 404


async def test_no_secret_is_kept(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    made = await admin.ok("POST", "/keys", {"team": "t"})
    new = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {"overlap_seconds": 60})
    with postgres.superuser(database) as connection:
        dump = "".join(
            str(connection.execute(f"SELECT t::text FROM {table} t").fetchall())
            for table in ("virtual_key", "rotated_secret", "audit", "governance_version")
        )
    listed = str(await admin.ok("GET", "/keys"))
    for key in (made["key"], new["key"]):
        assert key[3:] not in dump + listed


async def test_a_guard_of_the_release_before_still_mints_and_reads(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    """Its statements, to the letter; the epoch moves without its knowing."""
    from gateway_rig.policy import PEPPER

    from terrace_gateway.authentication.keys import hash_key, mint_key

    key, key_id = mint_key(), "key_" + "0" * 20
    with psycopg.connect(postgres.url(database)) as old:
        old.execute(
            "INSERT INTO virtual_key (key_id, key_hash, team, name, models, expires_at)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            (key_id, hash_key(PEPPER, key), "team-a", "n", None, None),
        )
        old.execute(
            "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
            " VALUES ('key', %s, %s, %s, %s)",
            (key_id, "requests", 60, 3),
        )
        old.commit()
        await replica.feed.refresh()
        principal = await replica.call(key)
        assert principal is not None
        assert [(c.dimension, c.window.seconds, c.amount) for c in principal.caps] == [
            ("requests", 60, 3)
        ]
        old.execute(
            "UPDATE virtual_key SET revoked_at = clock_timestamp()"
            " WHERE key_id = %s AND revoked_at IS NULL RETURNING key_id",
            (key_id,),
        )
        old.commit()
    await replica.feed.refresh()
    assert await status_of(replica, key) == 401
    _, minted = await replica.mint(team="team-b")
    with psycopg.connect(postgres.url(database)) as old:
        row = old.execute(
            "SELECT key_id, team, models FROM virtual_key WHERE key_id = %s", (minted,)
        ).fetchone()
    assert row == (minted, "team-b", None)
