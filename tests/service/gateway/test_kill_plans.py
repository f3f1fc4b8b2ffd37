"""What an apply says of kill switches that are on: of persons by their tokens, keys, models."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from gateway_rig.admin import Admin
from gateway_rig.policy import Replica, example_text

from terrace_gateway.authentication.bearer import bearer_of
from terrace_gateway.authentication.token import Token

SPEC = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}, {name: team-b}]
users: [{name: jo, team: team-a, subject: "8f3a"}]
apps: [{name: bot, team: team-a, user: jo}, {name: other, team: team-b}]
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "https://login.acme.example", audiences: [terrace],
       team_claim: groups, teams: [{value: g, team: team-b}]}
"""
V1 = example_text() + SPEC
SECOND = """    - {name: partners, kind: oidc, issuer: "https://id.partner.example", audiences: [x]}
"""
TELLS = ("kill-switch-lost", "kill-switch-moves")


@pytest.fixture
def first_text() -> str:
    return V1


async def put(admin: Admin, base: int, text: str, *allow: str) -> tuple[int, list[Any]]:
    """The status, and the findings about kill switches."""
    response = await admin.send(
        "POST", "/governance/apply",
        {"text": text, "base_version": base, "reason": "r",
         "allow": ["model-not-deployed", *allow]},
    )  # fmt: skip
    found = response.json()["findings"]
    return response.status_code, [one for one in found if one["code"] in TELLS]


def stopped(replica: Replica, subject: str) -> bool:
    """Whether a call with a token of ``corp`` is."""
    snapshot = replica.feed.current().snapshot
    authentication = snapshot.governance.authentication
    assert authentication is not None
    issuer = next(one for one in authentication.issuers if one.name == "corp")
    now = datetime.now(UTC)
    end = now + timedelta(hours=1)
    claims = {
        "iss": issuer.issuer, "aud": "terrace", "sub": subject, "oid": f"{subject}-2",
        "groups": ["g"], "exp": end.timestamp(),
    }  # fmt: skip
    token = Token(issuer, "RS256", subject, claims, end)
    return snapshot.killed(bearer_of(token, snapshot, now=now).caller) is not None


@pytest.mark.parametrize(
    ("was", "now", "subject"),
    [
        ("//login.acme", "//id.acme", "zoe"),
        ("team_claim:", "user_claim: oid, team_claim:", "zoe-2"),
    ],
)
async def test_a_person_who_would_have_another_id_is_not_let_go_unseen(
    admin: Admin, replica: Replica, was: str, now: str, subject: str
) -> None:
    await admin.ok("POST", "/kill", {"target": "subject:corp:zoe", "reason": "stolen token"})
    assert stopped(replica, "zoe")
    text = V1.replace(was, now)
    status, [found] = await put(admin, 1, text)
    assert (status, found["code"], found["blocking"]) == (409, "kill-switch-lost", True)
    assert (await put(admin, 1, text, "kill-switch-lost"))[0] == 200
    assert not stopped(replica, "zoe")
    again = {"target": f"subject:corp:{subject}", "reason": "as the finding says"}
    await admin.ok("POST", "/kill", again)
    assert stopped(replica, "zoe")
    assert await put(admin, 2, text + "# more\n") == (200, [])


async def test_a_user_whose_bare_subject_would_name_nobody_is_not_let_go_unseen(
    admin: Admin, replica: Replica
) -> None:
    await admin.ok("POST", "/kill", {"target": "user:jo", "reason": "r"})
    assert stopped(replica, "8f3a")
    status, [found] = await put(admin, 1, V1 + SECOND)
    assert (status, found["code"], found["blocking"]) == (409, "kill-switch-lost", True)
    assert "'corp:SUBJECT'" in found["message"]
    text = V1.replace('"8f3a"', '"corp:8f3a"') + SECOND  # as the finding says
    assert await put(admin, 1, text) == (200, [])
    assert stopped(replica, "8f3a")


async def test_a_minted_key_that_leaves_with_its_app_is_told(
    admin: Admin, replica: Replica
) -> None:
    made = await admin.ok("POST", "/keys", {"app": "bot"})
    await admin.ok("POST", "/kill", {"target": "user:jo", "reason": "r"})

    def killed() -> bool:
        snapshot = replica.feed.current().snapshot
        return snapshot.killed(snapshot.principal(snapshot.keys[made["key_id"]]).caller) is not None

    assert killed()
    status, [found] = await put(admin, 1, V1.replace("team-a, user: jo}", "team-a}"))
    assert (status, found["code"], found["blocking"]) == (200, "kill-switch-moves", False)
    assert "app 'bot'" in found["message"]
    assert not killed()


async def test_a_switch_of_an_alias_that_is_given_to_a_later_model_is_told(
    admin: Admin, replica: Replica
) -> None:
    spec = yaml.safe_load(V1)
    model = next(one for one in spec["models"] if one["name"] == "sim-small")
    model["aliases"] = ["chat"]
    assert await put(admin, 1, yaml.safe_dump(spec)) == (200, [])
    await admin.ok("POST", "/kill", {"target": "model:chat", "reason": "r"})
    model["aliases"] = []
    assert (await put(admin, 2, yaml.safe_dump(spec)))[0] == 200
    await admin.ok("POST", "/unkill", {"target": "model:sim-small", "reason": "r"})
    spec["models"].append({**model, "name": "sim-new", "aliases": ["chat"]})
    status, [found] = await put(admin, 3, yaml.safe_dump(spec))
    assert (status, found["code"]) == (200, "kill-switch-moves")
    assert "model:chat" in found["message"]
    assert "'sim-new'" in found["message"]
    assert "sim-new" in replica.feed.current().snapshot.killed_models
