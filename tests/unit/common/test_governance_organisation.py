"""Organisation, policies and quotas: what is right loads, what is wrong is named with its line."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import (
    Governance,
    GovernanceError,
    Quota,
    UnknownSubjectError,
    Window,
    compile_caps,
    compile_governance,
    load_governance,
)

from .governance_specs import WHOLE

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/governance/governance.yaml"
QUOTA = "{dimension: concurrency, amount: 3}"


def problems(text: str) -> list[tuple[int, str]]:
    with pytest.raises(GovernanceError) as caught:
        load_governance(text, "spec.yaml")
    return caught.value.problems


def line_of(fragment: str, text: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if fragment in line)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # names that are not declared: a close one is offered, else all are listed
        ("org: acme, policies: [trial]", "org: acmee", "org 'acmee' is not declared; did you mean"),
        ("name: ads, org: acme", "name: ads, org: zz", "org 'zz' is not declared; declared: acme"),
        ("team: search, subject", "team: serch, subject", "did you mean 'search'?"),
        ("app: bot,", "app: bott,", "app 'bott' is not declared; did you mean 'bot'?"),
        ("models: [small, claude]", "models: [smal]", "model 'smal' is not declared; did you mean"),
        ("policies: [small-only]", "policies: [zz]", "policy 'zz' is not declared; declared:"),
        ("models: [tiny]", "models: [tinny]", "model 'tinny' is not declared; did you mean 'tiny'"),
        ("models: [tiny]", "deny_providers: [nort]", "provider 'nort' is not declared"),
        ("models: [tiny]", "guardrails: [secret]", "did you mean 'secrets'?"),
        # duplicates
        ("name: ads, org", "name: search, org", "team 'search' is given twice"),
        ("name: in-europe", "name: small-only", "policy 'small-only' is given twice"),
        ("policies: [trial]", "policies: [trial, trial]", "policy 'trial' is given twice"),
        ("models: [small, claude]", "models: [small, small]", "model 'small' is given twice"),
        (QUOTA, f"{QUOTA}, {QUOTA}", "a quota on concurrency over the same window is given twice"),
        (
            "alert_at: [80, 50]}",
            "mode: audit}, {dimension: micro_usd, per: month, zone: Europe/Berlin, amount: 1}",
            "over the same window is given twice",
        ),
        ("alert_at: [80, 50]", "alert_at: [80, 80]", "alert_at has a percentage twice"),
        # owners that contradict each other
        ("team: search, user: jo", "team: ads, user: jo", "user 'jo' is of team 'search', and"),
        ("app: bot, models", "app: bot, team: search, models", "exactly one of app, user and team"),
        ("app: bot, models", "models", "given: none"),
        ("name: bot-prod", "name: key_x", "must not begin with key_"),
        # cycles
        ("models: [tiny]", "extends: small-only", "in a circle: small-only -> small-only"),
        ("models: [tiny]", "extends: zz", "policy 'zz' is not declared"),
        # impossible values
        ("usd: 12.50", "usd: 12.1234567", "digits with at most six decimals"),
        ("usd: 12.50", "usd: -1", "digits with at most six decimals"),
        ("usd: 12.50", "usd: 12:30", "digits with at most six decimals"),
        ("usd: 12.50", "usd: 1e3", "digits with at most six decimals"),
        ("usd: 12.50", "usd: .inf", "digits with at most six decimals"),
        ("usd: 12.50", "usd: true", "digits with at most six decimals"),
        ("usd: 12.50", "usd: 1, amount: 1", "give either amount or usd"),
        ("per: month, usd: 12.50", "per: month", "give either amount or usd"),
        ("dimension: micro_usd", "dimension: requests", "usd is an amount of money"),
        ("dimension: micro_usd", "dimension: money", "'requests'"),
        ("zone: Europe/Berlin", "zone: Europe/Berlinn", "is no time zone; right would be an IANA"),
        ("zone: Europe/Berlin", "zone: ../../etc/passwd", "is no time zone"),
        ("per: month, usd", "per: month, window: fixed, usd", "months differ in length"),
        ("per: month, usd", "per: month, window: rolling, usd", "zone counts only for calendar"),
        ("per: month, usd", "per: minute, usd", "zone counts only for calendar windows"),
        ("per: month, usd", "per: lifetime, window: rolling, usd", "a lifetime has no window"),
        ("per: month, usd", "usd", "per is required: minute, hour"),
        (QUOTA, "{dimension: concurrency, per: day, amount: 1}", "concurrency counts running"),
        ("amount: 3", "amount: -1", "greater than or equal to 0"),
        ("amount: 3", "amount: 0.5", "valid integer"),
        ("alert_at: [80, 50]", "alert_at: [101]", "less than or equal to 100"),
        ("models: [tiny]", "networks: [10.1.1.1/8]", "right would be 10.0.0.0/8"),
        ("models: [tiny]", "networks: [office]", "such as 10.0.0.0/8"),
        ("models: [tiny]", "hours: [{from: 9}]", "from: Input should be a valid string"),
        ("models: [tiny]", "hours: [{from: 25:00}]", "a time of the day from 00:00 to 24:00"),
        ("models: [tiny]", "hours: [{from: 08:00, to: 08:00}]", "is no time at all"),
        ("models: [tiny]", "hours: [{zone: Mars}]", "is no time zone"),
        ("models: [tiny]", "hours: [{days: [monday]}]", "'mon'"),
        ("models: [tiny]", "capture: {}", "retention_days is required"),
        ("models: [tiny]", "capture: {retention_days: 0}", "greater than or equal to 1"),
        ("models: [tiny]", "capture: always", "'never'"),
        ("models: [tiny]", "max_output_tokens: 0", "greater than or equal to 1"),
        # unknown keys list the valid ones, at any depth
        ("models: [tiny]", "model: [tiny]", "valid keys here: capture, deny_features"),
        ("models: [tiny]", "hours: [{form: 08:00}]", "valid keys here: days, from, to, zone"),
        ("amount: 3", "amout: 3", "valid keys here: alert_at, amount, dimension"),
        ("org: acme, policies", "orgs: acme, policies", "valid keys here: name, org, policies"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert WHOLE.count(old) >= 1
    text = WHOLE.replace(old, new, 1)
    found = problems(text)
    assert any(message in what for _, what in found), found
    assert {line for line, what in found if message in what} == {line_of(old, WHOLE)}


def test_all_problems_of_a_file_are_told_at_once() -> None:
    text = WHOLE.replace("org: acme", "org: b").replace("team: search,", "team: c,")
    found = problems(text)
    assert len(found) == 4
    assert {line for line, _ in found} == {
        line_of("name: search", text),
        line_of("name: ads", text),
        line_of("name: jo", text),
        line_of("name: bot, team", text),
    }


def test_a_misspelt_key_hides_no_misspelt_name() -> None:
    text = WHOLE
    for old, new in (
        ("upstream_model: s, context_tokens", "upstream_model: s, contxt_tokens"),
        ("provider: west", "provider: wst"),
        ("org: acme, policies: [trial]", "org: acm, policies: [trail]"),
        ("app: bot, models: [small, claude]", "app: bt, models: [small, cloude]"),
    ):
        assert old in text
        text = text.replace(old, new)
    said = sorted(what.partition(";")[0] for _, what in problems(text))
    assert said == [
        "keys.0.app: app 'bt' is not declared",
        "keys.0.models.1: model 'cloude' is not declared",
        "models.0.context_tokens is required",
        "models.2.provider: provider 'wst' is not declared",
        "teams.0.org: org 'acm' is not declared",
        "teams.0.policies.0: policy 'trail' is not declared",
        "unknown key 'contxt_tokens'",
    ]
    assert {line for line, _ in problems(text)} == {
        line_of(part, text) for part in ("contxt", "wst", "trail", "cloude")
    }


def test_what_only_follows_from_another_problem_is_not_told() -> None:
    one = "models:\n  - {name: small, provider: east, upstream_model: s, contxt_tokens: 1000}\n"
    said = [what for _, what in problems(WHOLE[: WHOLE.index("models:")] + one)]
    assert not [what for what in said if "at least 1 item" in what], said
    said = [what for _, what in problems(WHOLE[: WHOLE.index("models:")] + "models: []\n")]
    assert [what for what in said if "at least 1 item" in what]
    # Names that cannot be read are not looked up in: who wrote them has one fault, not many.
    for old, new in (("{name: east, kind", "{nmae: east, kind"), ("\npolicies:", "\npolices:")):
        said = [what for _, what in problems(WHOLE.replace(old, new))]
        assert not [what for what in said if "not declared" in what], said


def test_a_circle_of_policies_names_its_members_and_no_other() -> None:
    text = WHOLE.replace("models: [tiny]", "extends: trial").replace(
        "mode: audit,", "extends: in-europe, mode: audit,"
    )
    load_governance(text, "spec.yaml")
    circle = text.replace('residency: ["eu-*"]', "extends: trial")
    assert [what.partition("circle: ")[2] for _, what in problems(circle)] == [
        "in-europe -> trial -> in-europe",
        "trial -> in-europe -> trial",
    ]


def test_two_users_cannot_have_one_subject() -> None:
    text = WHOLE.replace("users:\n", "users:\n  - {name: al, team: ads, subject: sub-jo}\n")
    [(line, what)] = problems(text)
    assert (line, "is already that of user 'al'" in what) == (line_of("name: jo", text), True)


@pytest.mark.parametrize(
    ("usd", "micro_usd"),
    [
        ("12.50", 12_500_000),
        ("0.000001", 1),
        ("0.1", 100_000),
        ("1.001", 1_001_000),
        ("2.01", 2_010_000),
        ("16.4", 16_400_000),
        ("3", 3_000_000),
        ("999999999.999999", 999_999_999_999_999),
        ('"0.30"', 300_000),
    ],
)
def test_dollars_are_read_exactly(usd: str, micro_usd: int) -> None:
    spec = load_governance(WHOLE.replace("usd: 12.50", f"usd: {usd}"), "spec.yaml")
    assert spec.orgs[0].quotas[0].whole_amount() == micro_usd


def test_dollars_of_python_are_decimals() -> None:
    quota = Quota(dimension="micro_usd", per="day", usd=Decimal("0.10"))
    assert quota.whole_amount() == 100_000


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"per": "minute"}, Window("fixed", seconds=60)),
        ({"per": "hour"}, Window("fixed", seconds=3600)),
        ({"per": "hour", "zone": "Asia/Kolkata", "window": "calendar"},
         Window("calendar", unit="hour", zone="Asia/Kolkata")),
        ({"per": "day"}, Window("calendar", unit="day")),
        ({"per": "day", "window": "rolling"}, Window("rolling", seconds=86_400)),
        ({"per": "week", "zone": "Europe/Berlin"},
         Window("calendar", unit="week", zone="Europe/Berlin")),
        ({"per": "month"}, Window("calendar", unit="month")),
        ({"per": "month", "window": "rolling"}, Window("rolling", seconds=2_592_000)),
        ({"per": "lifetime"}, Window("lifetime")),
    ],
)  # fmt: skip
def test_windows(fields: dict[str, str], window: Window) -> None:
    quota = Quota.model_validate({"dimension": "requests", "amount": 1, **fields})
    assert quota.window_in_time() == window


def test_caps_of_everybody() -> None:
    spec = load_governance(WHOLE, "spec.yaml")
    caps = [
        (c.scope, c.scope_id, c.amount, c.thresholds, c.window.kind) for c in compile_caps(spec)
    ]
    assert caps == [
        ("app", "bot", 3, (), "lifetime"),
        ("org", "acme", 12_500_000, (50, 80), "calendar"),
    ]


def test_a_caller_stands_below_its_team_and_org() -> None:
    compiled = compile_governance(load_governance(WHOLE, "spec.yaml"))
    standing = compiled.standing(team="whatever", key="bot-prod")
    assert standing.scopes == (
        ("org", "acme"), ("team", "search"), ("user", "jo"), ("app", "bot"), ("key", "bot-prod"),
    )  # fmt: skip
    assert standing.policy.models == frozenset({"small"})  # claude is not in small-only
    assert standing.policy.names == ("small-only",)
    assert standing.audit is not None
    assert standing.audit.denied_features == frozenset({"tools"})
    assert standing.audit.mode == "audit"
    assert [cap.scope for cap in compiled.caps_of(standing.scopes)] == ["org", "app"]
    free = compiled.standing(team="ads", models=["tiny", "gone"])
    assert free.policy.models == frozenset({"small"})
    assert free.audit is None
    assert free.scopes == (("org", "acme"), ("team", "ads"))


@pytest.mark.parametrize(
    ("caller", "kind"),
    [
        ({"team": "gone"}, "team"),
        ({"team": "search", "app": "gone"}, "app"),
        ({"team": "search", "user": "gone"}, "user"),
        ({"team": "search", "key": "gone"}, "key"),
    ],
)
def test_who_is_not_declared_has_no_standing(caller: dict[str, str], kind: str) -> None:
    compiled = compile_governance(load_governance(WHOLE, "spec.yaml"))
    with pytest.raises(UnknownSubjectError) as caught:
        compiled.standing(**caller)  # pyright: ignore[reportArgumentType]
    assert (caught.value.kind, caught.value.name) == (kind, "gone")


def test_the_example_is_valid_and_means_what_its_comments_say() -> None:
    spec = load_governance(EXAMPLE.read_text("utf-8"), EXAMPLE.name)
    compiled = compile_governance(spec)
    indexer = compiled.standing(team="search", key="indexer-prod")
    assert indexer.policy.models == frozenset({"haiku", "gpt-small"})
    assert not indexer.policy.allows_region("")  # gpt-small's: not known
    assert indexer.policy.allows_region("eu-*")
    assert indexer.policy.denied_features == frozenset({"images", "reasoning"})
    assert indexer.policy.max_output_tokens == 8192
    assert indexer.policy.guardrails == ("no-secrets", "mask-personal-data")
    assert indexer.policy.hours == ()
    assert indexer.audit is not None
    assert len(indexer.audit.hours[0]) == 2
    helpdesk = compiled.standing(team="support", key="helpdesk-prod")
    assert helpdesk.policy.capture is not None
    assert helpdesk.policy.capture.retention_days == 30
    assert {cap.mode for cap in compiled.caps_of([("team", "support")])} == {"block", "audit"}
    assert compiled.standing(team="search", app="notebook").user == "jo"


def loaded(text: str) -> Governance | list[tuple[int, str]]:
    try:
        return load_governance(text, "spec.yaml")
    except GovernanceError as error:
        return error.problems


@given(st.text(max_size=40), st.integers(0, len(WHOLE)), st.integers(0, 30))
def test_any_edit_compiles_or_is_an_error_with_a_line(text: str, at: int, cut: int) -> None:
    found = loaded(WHOLE[:at] + text + WHOLE[at + cut :])
    if isinstance(found, list):
        assert found
        assert all(line >= 1 and what for line, what in found)
        return
    compiled = compile_governance(found)
    for key in found.keys:
        compiled.standing(team="", key=key.name)


@given(st.integers(0, len(WHOLE.splitlines()) - 1), st.integers(0, len(WHOLE.splitlines()) - 1))
def test_lines_in_another_order_load_or_are_an_error_with_a_line(one: int, other: int) -> None:
    lines = WHOLE.splitlines()
    lines[one], lines[other] = lines[other], lines[one]
    found = loaded("\n".join(lines))
    if isinstance(found, list):
        assert all(1 <= line <= len(lines) + 1 for line, _ in found)
