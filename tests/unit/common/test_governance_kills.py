"""What a plan says of kill switches: who would call again, whom one loses, whom one finds."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import UnknownSubjectError, compile_governance, load_governance
from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.effects import PreparedChange, plan_change
from terrace_common.governance.plan import Facts, Finding, LiveKey, LiveKill

from .governance_specs import CATALOGUE

ORGANISATION = """
orgs: [{name: acme}, {name: other}]
teams: [{name: t1, org: acme}, {name: t2, org: acme}, {name: t3, org: other}]
users: [{name: jo, team: t1, subject: "8f3a"}, {name: zoe, team: t1}, {name: max, team: t3}]
apps: [{name: bot, team: t1, user: jo}, {name: bot3, team: t3}]
keys: [{name: k-team, team: t1}, {name: k-app, app: bot}, {name: k-user, user: jo}]
"""
ISSUERS = """
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "https://login.acme.example", audiences: [a],
       user_claim: sub, team_claim: groups, teams: [{value: g, team: t1}, {value: h, team: t2}]}
    - {name: cluster, kind: kubernetes, issuer: "https://oidc.acme.example", audiences: [a],
       workloads: [{namespace: agents, service_account: runner, app: bot}]}
"""
BASE = CATALOGUE + ORGANISATION + ISSUERS
SECOND = """    - {name: partners, kind: oidc, issuer: "https://partners.example", audiences: [a]}
"""
TELLS = {"kill-switch-lost", "kill-switch-moves"}


def plan_of(old: str, new: str, facts: Facts) -> list[Finding]:
    found = plan_change(load_governance(old, "old"), load_governance(new, "new"), facts).findings
    return [one for one in found if one.code in TELLS]


def changed(*changes: tuple[str, str]) -> str:
    text = BASE
    for was, now in changes:
        assert was in text
        text = text.replace(was, now)
    return text


def kills(*targets: str) -> tuple[LiveKill, ...]:
    return tuple(LiveKill(*target.split(":", 1)) for target in targets)


KEYS = (
    LiveKey("key_1", "t1"), LiveKey("key_2", "t2"), LiveKey("key_3", "t1", key="k-team"),
    LiveKey("key_4", "t1", key="k-app"), LiveKey("key_5", "t1", key="k-app"),
    LiveKey("key_6", "t1", key="k-user"), LiveKey("key_7", "t1", app="bot"),
)  # fmt: skip
BOT = "{name: bot, team: t1"


@pytest.mark.parametrize(
    ("target", "was", "now", "who"),
    [
        ("org:acme", "{name: t2, org: acme}", "{name: t2}", "team 't2'"),
        ("org:acme", "{name: t2, org: acme}", "{name: t2, org: other}", "team 't2'"),
        ("team:t1", "k-team, team: t1", "k-team, app: bot3", "key 'k-team'"),
        ("team:t1", "k-app, app: bot}", "k-app, user: max}", "key 'k-app'"),
        ("app:bot", "k-app, app: bot}", "k-app, team: t1}", "key 'k-app'"),
        ("user:jo", "k-user, user: jo}", "k-user, user: zoe}", "key 'k-user'"),
        ("user:jo", BOT + ", user: jo}", BOT + "}", "app 'bot'"),
        ("user:jo", BOT + ", user: jo}", BOT + ", user: zoe}", "app 'bot'"),
    ],
)
def test_who_leaves_what_is_stopped_is_told_once(target: str, was: str, now: str, who: str) -> None:
    new = changed((was, now))
    [found] = plan_of(BASE, new, Facts(KEYS, kills=kills(target)))
    assert (found.code, found.blocking) == ("kill-switch-moves", False)
    assert target in found.message
    assert f"would not stop {who} any more" in found.message
    everybody = kills(target, "team:t1", "team:t2", "team:t3")
    assert plan_of(BASE, new, Facts(KEYS, kills=everybody)) == []
    assert plan_of(BASE, BASE, Facts(KEYS, kills=kills(target))) == []
    assert plan_of(new, BASE, Facts(KEYS, kills=kills(target))) == []


def test_a_live_key_whose_app_and_team_stay_is_told_by_its_id() -> None:
    """A key of an app and a user counts for the app's user, if the app has one."""
    old = changed((BOT + ", user: jo}", BOT + "}"))
    facts = Facts((LiveKey("key_1", "t1", app="bot", user="zoe"),), kills=kills("user:zoe"))
    [found] = plan_of(old, BASE, facts)
    assert found.message.startswith("kill switch user:zoe would not stop live key 'key_1' any more")
    assert plan_of(old, BASE, Facts(facts.keys, kills=kills("user:zoe", "key:key_1"))) == []


def test_who_leaves_with_a_team_is_not_told_beside_it() -> None:
    keys = tuple(LiveKey(f"key_{n:03}", "t1", app="bot") for n in range(300))
    new = changed(("{name: t1, org: acme}", "{name: t1}"))
    [found] = plan_of(BASE, new, Facts(keys, kills=kills("org:acme")))
    assert "team 't1'" in found.message
    many = "apps: [" + "".join(f"{{name: a{n}, team: t1}}, " for n in range(50))
    old = BASE.replace("apps: [", many)
    new = old
    for n in range(50):
        new = new.replace(f"{{name: a{n}, team: t1}}", f"{{name: a{n}, team: t2}}")
    [found] = plan_of(old, new, Facts(keys, kills=kills("team:t1")))
    assert "and 45 more" in found.message
    assert len(found.message) < 250


def test_a_switch_that_is_lost_tells_no_leavers_beside_it() -> None:
    new = BASE.replace("t1", "t9")
    key = LiveKey("key_1", "t1", key="k-team")
    [found] = plan_of(BASE, new, Facts((key,), kills=kills("team:t1")))
    assert (found.code, found.blocking) == ("kill-switch-lost", True)


# --- any change of who belongs where --------------------------------------------------------------

TEAMS, USERS, APPS = ("t1", "t2"), ("u1", "u2"), ("a1", "a2")
LIVE = (
    LiveKey("key_t", "t1"), LiveKey("key_u", "t1", user="u1"), LiveKey("key_a", "t1", app="a1"),
    LiveKey("key_au", "t2", app="a2", user="u2"), LiveKey("key_k", "t1", key="k1"),
)  # fmt: skip


@st.composite
def organisations(draw: Any) -> str:
    def pick(*names: str) -> str:
        return str(draw(st.sampled_from(names)))

    teams = [f"{{name: {name}{pick('', ', org: o1', ', org: o2')}}}" for name in TEAMS]
    of = {name: pick(*TEAMS) for name in USERS}
    users = [f"{{name: {name}, team: {team}}}" for name, team in of.items()]
    apps: list[str] = []
    for name in APPS:
        user = pick("", *USERS)
        owner = f"team: {of[user]}, user: {user}" if user else f"team: {pick(*TEAMS)}"
        apps.append(f"{{name: {name}, {owner}}}")
    key = pick("team: t1", "team: t2", "user: u1", "user: u2", "app: a1", "app: a2")
    lists = {"teams": teams, "users": users, "apps": apps}
    return (
        CATALOGUE + "\norgs: [{name: o1}, {name: o2}]\nkeys: [{name: k1, " + key + "}]\n"
        + "".join(f"{section}: [{', '.join(one)}]\n" for section, one in lists.items())
    )  # fmt: skip


def stopped(spec: CompiledGovernance, key: LiveKey, on: set[tuple[str, str]]) -> bool | None:
    """As the gateway asks at a call. ``None``: it is refused anyhow."""
    try:
        found = spec.standing(team=key.team, user=key.user, app=key.app, key=key.key)
    except UnknownSubjectError:
        return None
    asked = {
        ("org", found.org), ("team", found.team), ("user", found.user), ("app", found.app),
        ("key", key.key), ("key", key.key_id),
    }  # fmt: skip
    return not asked.isdisjoint(on)


def mine(spec: CompiledGovernance, key: LiveKey) -> tuple[tuple[str, str], ...]:
    return spec.standing(team=key.team, user=key.user, app=key.app, key=key.key).scopes


SWITCHES = st.sets(
    st.sampled_from(
        ["org:o1", "org:o2", "team:t1", "team:t2", "user:u1", "user:u2", "app:a1", "app:a2",
         "key:k1", "key:key_t", "key:key_a"]
    ),
    min_size=1,
)  # fmt: skip


@given(organisations(), organisations(), SWITCHES)
def test_whoever_calls_again_is_told_and_nobody_else(old: str, new: str, on: set[str]) -> None:
    was, now = (compile_governance(load_governance(text, "s")) for text in (old, new))
    change = PreparedChange(was, now)
    switches = kills(*sorted(on))
    places = {(kill.kind, kill.target) for kill in switches}
    for key in LIVE:
        facts = Facts((key,), kills=switches)
        found = [one for one in change.plan(facts).findings if one.code in TELLS]
        bare = [one for one in change.plan(Facts(kills=switches)).findings if one.code in TELLS]
        if stopped(was, key, places) is True and stopped(now, key, places) is False:
            words = " ".join(one.message for one in found)
            assert any(
                f"{kind} {name!r}" in words
                for kind, name in (*mine(was, key), ("live key", key.key_id))
            ) or any(one.code == "kill-switch-lost" for one in found)
        else:
            assert found == bare  # of others than this key


@given(organisations(), organisations(), SWITCHES, st.randoms())
def test_the_same_facts_in_any_order_give_the_same_plan(
    old: str, new: str, on: set[str], random: Random
) -> None:
    specs = load_governance(old, "old"), load_governance(new, "new")
    keys, switches = list(LIVE), list(kills(*on))
    plan = plan_change(*specs, Facts(tuple(keys), kills=tuple(switches)))
    random.shuffle(keys)
    random.shuffle(switches)
    assert plan_change(*specs, Facts(tuple(keys), kills=tuple(switches))) == plan


# --- tokens ---------------------------------------------------------------------------------------

CLAIMS = (
    """user_claim: sub, team_claim: groups, teams: [{value: g, team: t1}, {value: h, team: t2}]"""
)
WORKLOADS = "workloads: [{namespace: n, service_account: s, app: bot}]"
PERSON, POD = "key:oidc:" + 24 * "0", "key:workload:" + 24 * "0"


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        (PERSON, [("https://login.acme.example", "https://id.acme.example")]),
        (PERSON, [("user_claim: sub", "user_claim: email")]),
        (PERSON, [(ISSUERS, "")]),
        (PERSON, [("kind: oidc", "kind: kubernetes"), (CLAIMS, WORKLOADS)]),
        (POD, [("https://oidc.acme.example", "https://oidc.other.example")]),
        (POD, [(ISSUERS, "")]),
    ],
)  # fmt: skip
def test_a_switch_of_a_person_or_pod_is_lost_with_what_its_id_is_made_of(
    target: str, changes: list[tuple[str, str]]
) -> None:
    new = changed(*changes)
    [found] = plan_of(BASE, new, Facts(kills=kills(target)))
    assert (found.code, found.blocking) == ("kill-switch-lost", True)
    assert target in found.message
    assert "--allow kill-switch-lost" in found.message
    other = POD if target == PERSON else PERSON
    if ISSUERS not in dict(changes):
        assert plan_of(BASE, new, Facts(kills=kills(other))) == []
    assert plan_of(new, new, Facts(kills=kills(target))) == []


def test_what_leaves_an_id_as_it_is_loses_no_switch() -> None:
    same = changed(("name: corp", "name: company"), ("audiences: [a]", "audiences: [b]")) + SECOND
    assert plan_of(BASE, same, Facts(kills=kills(PERSON, POD))) == []


@pytest.mark.parametrize(
    ("changes", "more", "told"),
    [
        ([], SECOND, True),
        ([('"8f3a"', '"corp:8f3a"')], SECOND, False),
        ([('"8f3a"', '"9999"')], "", True),
        ([(', subject: "8f3a"', "")], "", True),
        ([("user_claim: sub", "user_claim: email")], "", True),
        ([("user_claim: sub", "user_claim: email"), ('"8f3a"', '"jo@acme.example"')], "", False),
        ([("https://login.acme.example", "https://id.acme.example")], "", False),
        ([("name: corp", "name: company")], "", False),
        ([('"8f3a"', '"old"'), ("zoe, team: t1", 'zoe, team: t1, subject: "8f3a"')], "", True),
    ],
)  # fmt: skip
def test_a_switch_of_a_user_whose_tokens_are_not_theirs_any_more_is_lost(
    changes: list[tuple[str, str]], more: str, told: bool
) -> None:
    found = plan_of(BASE, changed(*changes) + more, Facts(kills=kills("user:jo")))
    assert [(one.code, one.blocking) for one in found] == [("kill-switch-lost", True)] * told
    assert all("user:jo" in one.message and ":SUBJECT" in one.message for one in found)


def test_a_subject_of_an_issuer_that_has_another_name_is_nobodys() -> None:
    old = changed(('"8f3a"', '"corp:8f3a"'))
    for new in (
        old.replace("name: corp", "name: company"),
        old.replace("name: corp", "name: company").replace("https://login.", "https://id."),
    ):
        [found] = plan_of(old, new, Facts(kills=kills("user:jo")))
        assert found.code == "kill-switch-lost"
        assert "company:SUBJECT" in found.message


@pytest.mark.parametrize(
    ("target", "was", "now", "who"),
    [
        ("team:t1", "{value: g, team: t1}", "{value: g, team: t2}", "group 'g'"),
        ("org:acme", "{value: h, team: t2}", "{value: h, team: t3}", "group 'h'"),
        ("team:t1", ', subject: "8f3a"', "", "the tokens of user 'jo'"),
        ("app:bot", "runner, app: bot", "runner, app: bot3", "workload 'agents/runner'"),
        ("app:bot", "service_account: runner", "service_account: other", None),
    ],
)  # fmt: skip
def test_bearers_of_tokens_who_leave_are_told(
    target: str, was: str, now: str, who: str | None
) -> None:
    found = plan_of(BASE, changed((was, now)), Facts(kills=kills(target)))
    assert [one.code for one in found] == ["kill-switch-moves"] * (who is not None)
    assert all(str(who) in one.message for one in found)


# --- models ---------------------------------------------------------------------------------------

NEW_MODEL = """  - {name: %s, provider: %s, upstream_model: n, context_tokens: 1000,
     max_output_tokens: 100, price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}}
"""
LARGE = "name: large, provider: east, upstream_model: l"
LARGE_WEST = "name: large, provider: west, upstream_model: anthropic.claude-3-v1:0"
BARE = CATALOGUE.rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("target", "old", "new", "model"),
    [
        ("model:chat", BARE, BARE + NEW_MODEL % ("chat", "east"), "'chat'"),
        ("model:chat", BARE, BARE.replace("[tiny]", "[tiny, chat]"), "'small'"),
        ("model:tiny", BARE, BARE.replace("name: small", "name: mini").replace("[tiny]", "[small]")
         + NEW_MODEL % ("tiny", "east"), "mini"),
        ("provider:east", BARE, BARE + NEW_MODEL % ("chat", "east"), "model 'chat'"),
        ("provider:west", BARE, BARE.replace(LARGE, LARGE_WEST), "model 'large'"),
    ],
)  # fmt: skip
def test_a_switch_that_would_stop_a_model_that_it_does_not_stop_now_is_told(
    target: str, old: str, new: str, model: str
) -> None:
    assert new != old
    [found] = plan_of(old, new, Facts(kills=kills(target)))
    assert target in found.message
    assert model in found.message
    assert plan_of(new, new, Facts(kills=kills(target))) == []


def test_a_renamed_model_that_leaves_a_stopped_provider_is_told() -> None:
    more = NEW_MODEL % ("chat", "east")
    new = (BARE + more).replace("provider: west", "provider: east")
    new = new.replace("name: claude,", "name: opus, aliases: [claude],").replace(
        "anthropic.claude-sonnet-4-5-20250929-v1:0", "o"
    )
    west = NEW_MODEL.replace("upstream_model: n", "upstream_model: anthropic.claude-3-v1:0")
    west %= ("stays", "west")
    [found] = plan_of(BARE + west, new + west, Facts(kills=kills("provider:west")))
    assert "provider:west would not stop model 'opus' any more" in found.message
    switches = kills("provider:west", "model:claude")
    [found] = plan_of(BARE + west, new + west, Facts(kills=switches))
    assert "model:claude" in found.message  # renamed, and stopped


def test_a_switch_whose_name_is_given_away_anew_is_told() -> None:
    without = BASE.replace("{name: max, team: t3}", "{name: maxim, team: t3}")
    [found] = plan_of(without, BASE, Facts(kills=kills("user:max")))
    assert (found.code, found.blocking) == ("kill-switch-moves", False)
    assert "user 'max'" in found.message
