"""An admitted caller is asked for again when the policy changed or its time is over."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from terrace_gateway.authentication import tokens
from terrace_gateway.calls import found_anew
from terrace_gateway.calls.ports import Caller, Cap, Needs, Principal, Window
from terrace_gateway.calls.serving import Call
from terrace_gateway.calls.still_allowed import ReservedOtherwiseError, StillAllowed
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.records import KeyRecord

from .token_world import PER_USER, World, a_world, service_account, snapshot_of

pytestmark = pytest.mark.unit

CANDIDATE: Any = SimpleNamespace(model=SimpleNamespace(name="sim-small", provider="simulator"))
CORP = "      audiences: [terrace]\n"
NEEDS = Needs("chat", input_bound_tokens=100, output_tokens=50, features=frozenset({"tools"}))
GROUPS = {"sub": "zoe", "groups": ["g-search"]}


class Matcher:
    """Every candidate may still serve."""

    def again(self, candidate: Any, *_: Any) -> Any:
        return candidate


@dataclass
class Asked:
    """A call that was admitted in ``world``."""

    world: World
    call: Call
    allowed: StillAllowed

    def change(self, *edits: tuple[str, str], **more: Any) -> None:
        """The policy is one whose text has these edits."""
        text = self.world.text
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        same = text == self.world.text
        made = snapshot_of(text, epoch=2, **more)
        if same:  # as the feed does
            made = replace(made, compiled=self.world.snapshot.compiled)
        self.world.feed.in_force.snapshot = made

    async def renewed(self) -> tuple[Call, Any]:
        return await self.allowed.renewed(self.call, CANDIDATE)

    async def refused(self) -> tuple[int, str]:
        """By both questions alike."""
        found = set()
        for ask in (self.allowed.renewed, self.allowed.confirm):
            with pytest.raises(ApiError) as caught:
                await ask(self.call, CANDIDATE)
            found.add((caught.value.status, caught.value.code))
        [one] = found
        return one


def asked_with(world: World, principal: Principal) -> Asked:
    request: Any = SimpleNamespace(asked_model="sim-small", needs=NEEDS)
    call = Call(
        "req", principal, world.snapshot, request, {}, bedrock_only=False, address="10.0.0.1",
        headers=[],
    )  # fmt: skip
    matcher: Any = Matcher()
    return Asked(world, call, StillAllowed(world.feed, matcher, world.clock))


async def admitted(world: World, **claims: Any) -> Asked:
    return asked_with(world, await world.call(world.token(**claims)))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[World]:
    async with a_world(cluster=True) as made:
        yield made


INVALID, DENIED = (401, "invalid_api_key"), (403, "policy_denied")
UNABLE = (503, "authority_unavailable")
JO = {"sub": "jo-subject"}


@pytest.mark.parametrize(
    ("claims", "old", "new", "refusal"),
    [
        (JO, "subject: jo-subject", "subject: somebody", DENIED),
        (JO, "- {name: jo, team: search, subject: jo-subject}", "", DENIED),
        (JO, CORP, "      audiences: [other]\n", INVALID),
        (JO, CORP, f"{CORP}      algorithms: [RS256]\n", INVALID),
        (JO, CORP, f"{CORP}      max_age_seconds: 300\n", INVALID),
        (JO, CORP, f"{CORP}      user_claim: email\n", INVALID),
        (JO, CORP, f"{CORP}      jwks_url: https://keys.example/keys\n", UNABLE),
        (JO, "/realm\n", "/realm2\n", INVALID),
        (JO, "[verified]", "[verified, mfa]", INVALID),
        (GROUPS, ", {value: g-search, team: search}", "", DENIED),
        (GROUPS, "value: g-search", "value: g-find", DENIED),
        (GROUPS, "team_claim: groups", "team_claim: roles", DENIED),
    ],
)
async def test_an_employee_whom_the_policy_refuses_now(
    world: World, claims: dict[str, Any], old: str, new: str, refusal: tuple[int, str]
) -> None:
    asked = await admitted(world, **claims)
    edits = [(old, new)]
    if "- {name: jo" in old:
        edits.append((", user: jo}", "}"))
    asked.change(*edits)
    assert await asked.refused() == refusal


async def test_an_issuer_that_is_not_declared_any_more(world: World, cluster: World) -> None:
    for one, claims in ((world, JO), (cluster, service_account("agents", "runner"))):
        asked = await admitted(one, **claims)
        asked.change((one.text[one.text.index("authentication:") :], ""))
        assert await asked.refused() == INVALID


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        ("service_account: runner", "service_account: other", DENIED),
        ("namespace: agents", "namespace: default", DENIED),
        ("audiences: [terrace]", "audiences: [other]", INVALID),
    ],
)
async def test_a_pod_whom_the_policy_refuses_now(
    cluster: World, old: str, new: str, refusal: tuple[int, str]
) -> None:
    asked = await admitted(cluster, **service_account("agents", "runner"))
    asked.change((old, new))
    assert await asked.refused() == refusal


@pytest.mark.parametrize("kill", [("all", ""), ("org", "acme"), ("team", "search"), ("user", "jo")])
async def test_kill_switches(world: World, cluster: World, kill: tuple[str, str]) -> None:
    for one, claims in ((world, JO), (cluster, service_account("agents", "runner"))):
        asked = await admitted(one, **claims)
        asked.change(kills=frozenset({kill}))
        assert await asked.refused() == (403, "killed")


async def test_kill_switches_of_an_app_and_of_whom_a_token_has_become(
    world: World, cluster: World
) -> None:
    pod = await admitted(cluster, **service_account("agents", "runner"))
    pod.change(kills=frozenset({("app", "bot")}))
    assert await pod.refused() == (403, "killed")
    jo = await admitted(world, **JO)
    moved = [(f"name: {one}, team: search", f"name: {one}, team: ads") for one in ("jo", "bot")]
    jo.change(*moved, kills=frozenset({("team", "ads")}))
    assert await jo.refused() == (403, "killed")
    jo.change(*moved, kills=frozenset({("team", "search")}))
    assert (await jo.renewed())[0].principal.caller.team == "ads"


async def test_who_is_still_declared_goes_on_with_what_holds_now(world: World) -> None:
    asked = await admitted(world, **JO)
    tight = Cap(2, "user", "jo", "requests", Window("lifetime"), 1)
    asked.change((CORP, f"{CORP}      clock_skew_seconds: 0\n"), caps={("user", "jo"): (tight,)})
    call, candidate = await asked.renewed()
    before, now = asked.call.principal, call.principal
    assert (candidate, now.caller, now.method) == (CANDIDATE, before.caller, "oidc")
    assert (before.caps, now.caps) == ((PER_USER,), (tight,))
    assert before.expires_at is not None
    assert now.expires_at == before.expires_at - timedelta(seconds=30)
    again, _ = await asked.allowed.renewed(call, CANDIDATE)
    assert again is call


async def test_a_leeway_that_was_taken_away_counts(world: World) -> None:
    asked = await admitted(world, **JO)
    world.clock.seconds += 600
    assert await asked.renewed() == (asked.call, CANDIDATE)
    asked.change((CORP, f"{CORP}      clock_skew_seconds: 0\n"))
    assert await asked.refused() == INVALID


@pytest.mark.parametrize("changed", [False, True])
async def test_a_token_ends_with_its_exp_and_the_leeway(
    world: World, cluster: World, *, changed: bool
) -> None:
    for one, claims in ((world, JO), (cluster, service_account("agents", "runner"))):
        asked = await admitted(one, **claims)
        if changed:
            asked.change()
        one.clock.seconds += 600 + 29
        await asked.renewed()
        await asked.allowed.confirm(asked.call, CANDIDATE)
        one.clock.seconds += 1
        assert await asked.refused() == INVALID


async def test_a_key_ends_with_its_time_as_well(world: World) -> None:
    now = world.clock.database_now()
    key = KeyRecord(
        key_id="key_1", key_hash=b"h", team="search", name=None,
        expires_at=now + timedelta(seconds=10),
    )  # fmt: skip
    caller = Caller("key_1", "search")
    asked = asked_with(world, replace(world.snapshot.principal(key), caller=caller))
    world.clock.seconds += 9
    assert await asked.renewed() == (asked.call, CANDIDATE)
    world.clock.seconds += 1
    assert await asked.refused() == INVALID


async def test_what_was_reserved_by_another_policy_is_not_sent(world: World) -> None:
    asked = await admitted(world, **JO)
    asked.change()  # another snapshot, the same for this call
    await asked.allowed.confirm(asked.call, CANDIDATE)
    tight = Cap(2, "user", "jo", "requests", Window("lifetime"), 1)
    ours = (PER_USER,)
    for caps in (
        {("user", "jo"): (tight,)},
        {("user", "jo"): ours, ("model", "sim-small"): (tight,)},
        {("user", "jo"): ours, ("provider", "simulator"): (tight,)},
    ):
        asked.change(caps=caps)
        with pytest.raises(ReservedOtherwiseError):
            await asked.allowed.confirm(asked.call, CANDIDATE)
    asked.change()
    matcher: Any = asked.allowed._matcher
    matcher.again = lambda *_: SimpleNamespace(model=CANDIDATE.model, output_tokens=7)
    with pytest.raises(ReservedOtherwiseError):
        await asked.allowed.confirm(asked.call, CANDIDATE)


GUARDED = """
guardrails:
  - {name: g, kind: content, words: [zeus]}
  - {name: h, kind: content, words: [hera]}
policies:
  - {name: p, guardrails: [g], capture: {retention_days: 1}}
"""


@pytest.mark.parametrize(
    ("old", "new", "goes_on"),
    [
        ("words: [zeus]", "words: [zeus, thunder]", False),
        ("guardrails: [g]", "guardrails: [g, h]", False),
        ("capture: {retention_days: 1}", "capture: never", False),
        ("words: [hera]", "words: [hera, iris]", True),
    ],
)
async def test_texts_are_sent_only_past_the_guardrails_in_force(
    world: World, old: str, new: str, *, goes_on: bool
) -> None:
    world.text = world.text.replace(
        "{name: jo, team: search", "{name: jo, policies: [p], team: search"
    )
    world.text += GUARDED
    world.snapshot = world.feed.in_force.snapshot = snapshot_of(world.text)
    asked = await admitted(world, **JO)
    asked.change((old, new))
    if goes_on:
        await asked.renewed()
        await asked.allowed.confirm(asked.call, CANDIDATE)
    else:
        assert await asked.refused() == UNABLE


def with_policy(world: World, policy: str) -> KeyRecord:
    """A key of ``world``, whose spec has this policy now."""
    key = KeyRecord(key_id="key_1", key_hash=b"h", team="search", policies=("p",))
    world.text += f"\npolicies:\n  - {{name: p, {policy}}}\n"
    world.snapshot = world.feed.in_force.snapshot = snapshot_of(world.text, keys={"key_1": key})
    return key


HERE = "networks: [10.0.0.0/8]"


@pytest.mark.parametrize(
    ("new", "goes_on"),
    [
        ("networks: [192.168.0.0/16]", False),
        ("deny_features: [tools]", False),
        ("max_context_tokens: 99", False),
        ("max_output_tokens: 49, over_output: refuse", False),
        ("hours: [{days: [mon], from: '00:00', to: '00:01', zone: UTC}]", False),
        ("networks: [10.0.0.0/24], max_context_tokens: 100", True),
    ],
)
async def test_a_request_that_would_not_be_admitted_now(
    world: World, new: str, *, goes_on: bool
) -> None:
    key = with_policy(world, HERE)
    asked = asked_with(world, world.snapshot.principal(key))
    asked.change((HERE, new), keys={"key_1": key})
    if goes_on:
        await asked.renewed()
    else:
        assert await asked.refused() == DENIED


async def test_a_key_that_is_not_for_this_surface_any_more(world: World) -> None:
    key = with_policy(world, HERE)
    asked = asked_with(world, world.snapshot.principal(key))
    for surfaces in (frozenset({"chat"}), frozenset({"embeddings"})):
        asked.change(keys={"key_1": replace(key, surfaces=surfaces)})
        if "chat" in surfaces:
            await asked.renewed()
    assert await asked.refused() == DENIED


async def test_hours_end_without_a_change_of_the_policy(world: World) -> None:
    key = with_policy(world, "hours: [{days: [mon], from: '12:00', to: '13:00', zone: UTC}]")
    asked = asked_with(world, world.snapshot.principal(key))
    world.clock.seconds += 3599  # it was noon
    assert await asked.renewed() == (asked.call, CANDIDATE)
    await asked.allowed.confirm(asked.call, CANDIDATE)
    world.clock.seconds += 1
    assert await asked.refused() == DENIED


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("this was to be free")


async def test_no_signature_and_no_fetch_and_nothing_while_nothing_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await admitted(world, **JO)
    fetches = world.idp.fetches
    monkeypatch.setattr(tokens, "_signed_claims", never)
    monkeypatch.setattr(tokens.jwt, "decode", never)
    found: Callable[..., Principal] = found_anew.bearer_of
    monkeypatch.setattr(found_anew, "bearer_of", never)
    assert await asked.renewed() == (asked.call, CANDIDATE)
    await asked.allowed.confirm(asked.call, CANDIDATE)
    monkeypatch.setattr(found_anew, "bearer_of", found)
    for edits in ([], [("value: g-ads", "value: g-adverts")]):
        asked.change(*edits)
        call, _ = await asked.renewed()
        assert call.principal.caller == asked.call.principal.caller
        await asked.allowed.confirm(asked.call, CANDIDATE)
    assert world.idp.fetches == fetches
