"""The library of secrets and personal data: what it finds, and what it leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import guardrails as sections
from terrace_common.governance import load_governance
from terrace_common.governance.sections import Problem
from terrace_gateway.guardrails import personal_rules as personal
from terrace_gateway.guardrails.content_rules import content_problems, content_rules
from terrace_gateway.guardrails.scan import Rule, RuleSet, Scan
from terrace_gateway.guardrails.secret_rules import is_random, secret_rule_names, secret_rules

from .guardrail_samples import INNOCENT, PERSONAL, SECRETS
from .guardrail_world import EXAMPLE

pytestmark = pytest.mark.unit

ALL_PERSONAL = tuple(sorted(personal.personal_rule_names()))


def masked(rules: list[Rule], text: str) -> tuple[str, set[str]]:
    scan = Scan(RuleSet(rules))
    return scan.feed(text.encode(), end=True).decode(), set(scan.found)


@pytest.mark.parametrize("name", SECRETS)
def test_each_rule_finds_its_secret_and_masks_all_of_it(name: str) -> None:
    text, gone = SECRETS[name]
    shown, found = masked(secret_rules((name,)), text)  # pyright: ignore[reportArgumentType]
    assert found == {name}
    assert gone not in shown
    assert gone[-8:] not in shown


@pytest.mark.parametrize("name", PERSONAL)
def test_each_rule_finds_its_personal_data(name: str) -> None:
    text, gone = PERSONAL[name]
    rules = personal.personal_rules((name,), phone_regions=())  # pyright: ignore[reportArgumentType]
    shown, found = masked(rules, text)
    assert found == {name}
    assert gone not in shown


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_is_left_alone(text: str) -> None:
    defaults = personal.personal_rules(
        sections.DEFAULT_PERSONAL_DATA, phone_regions=("US", "DE", "GB")
    )
    assert masked([*secret_rules(None), *defaults], text) == (text, set())


def test_the_spec_names_exactly_the_rules_that_there_are() -> None:
    assert set(sections.SecretRule.__args__) == secret_rule_names()
    assert set(sections.PersonalDataRule.__args__) == set(ALL_PERSONAL)
    assert set(SECRETS) == secret_rule_names()
    assert set(PERSONAL) == set(ALL_PERSONAL)


def test_a_number_of_one_s_own_country_needs_its_region() -> None:
    text = "Ruf 030 901820 an"
    assert masked(personal.personal_rules(("phone",), phone_regions=()), text)[1] == set()
    assert masked(personal.personal_rules(("phone",), phone_regions=("DE",)), text)[1] == {"phone"}


@given(st.integers(0, 10**15 - 1))
def test_one_wrong_digit_is_no_card(number: int) -> None:
    body = f"4{number:015}"[:15]
    good = [text for text in (f"{body}{digit}" for digit in range(10)) if personal.is_card(text)]
    assert len(good) == (1 if len(set(body)) > 1 else len(good))


@given(st.integers(0, 10**18 - 1), st.integers(4, 21), st.integers(1, 9))
def test_one_wrong_digit_is_no_iban(number: int, place: int, add: int) -> None:
    body = f"{number:018}"
    check = 98 - int(f"{body}131400") % 97
    good = f"DE{check:02}{body}"
    assert personal.is_iban(good)
    changed = good[:place] + str((int(good[place]) + add) % 10) + good[place + 1 :]
    assert not personal.is_iban(changed)


@pytest.mark.parametrize(
    "word", ["password1", "correcthorse", "aaaaaaaa1", "${SECRET}1x", "example99"]
)
def test_a_word_is_not_random(word: str) -> None:
    assert not is_random(word)


def test_words_and_patterns_of_the_user() -> None:
    section = sections.ContentGuardrail(
        name="c",
        kind="content",
        words=("project zeus", "C++", "straße", "a.b"),
        patterns=(sections.ContentPattern(name="ticket", pattern=r"\bT-\d{4,6}\b"),),
    )
    rules = content_rules(section)
    assert masked(rules, "Project\n ZEUS, c++ and Straße; t-12345; a.b axb")[0] == (
        "[masked:words], [masked:words] and [masked:words]; [masked:ticket]; [masked:words] axb"
    )
    assert masked(rules, "projectzeus T-123 zeus")[1] == set()


@given(st.lists(st.text(min_size=2, max_size=100).filter(str.strip), min_size=1, max_size=30))
def test_any_word_becomes_a_rule_that_finds_it(words: list[str]) -> None:
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        return
    section = sections.ContentGuardrail(name="c", kind="content", words=tuple(words))
    rules = RuleSet(content_rules(section))
    for word in words:
        scan = Scan(rules)
        scan.feed(" ".join(word.split()).encode(), end=True)
        assert set(scan.found) == {"words"}


def large(*names: str) -> sections.ContentGuardrail:
    """Patterns of which RE2 takes each one, and not all of them."""
    patterns = [{"name": name, "pattern": f"{name}\\P{{Lu}}{{900}}"} for name in names]
    return sections.ContentGuardrail.model_validate(
        {"name": "g", "kind": "content", "patterns": patterns}
    )


def test_what_re2_refuses_has_a_place() -> None:
    example = load_governance(EXAMPLE, "g.yaml")

    def problems(*guardrails: sections.ContentGuardrail) -> list[Problem]:
        return list(content_problems(example.model_copy(update={"guardrails": guardrails})))

    assert not problems(large("a"), large("b"))
    [(place, what)] = problems(large("a"), large(*"abcdefgh"))
    assert place == ("guardrails", 1)
    assert "RE2 refuses these patterns together" in what
    huge = "|".join([r"\p{L}{1000}", r"\P{Lu}{1000}", r"\P{L}{1000}", r"\PN{1000}"] * 3)
    rules = [Rule("huge", huge, ignore_case=True)]
    with pytest.raises(ValueError, match="RE2 refuses it: pattern too large"):
        RuleSet(rules)
