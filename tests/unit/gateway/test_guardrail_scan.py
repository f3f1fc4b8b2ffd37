"""The scan of a text in parts: any cut gives what the whole text gives, and nothing gets lost."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrace_common.governance.guardrails import DEFAULT_PERSONAL_DATA
from terrace_gateway.guardrails.local import RuleFilter
from terrace_gateway.guardrails.personal_rules import personal_rules
from terrace_gateway.guardrails.scan import (
    MAX_CANDIDATES,
    Rule,
    RuleSet,
    Scan,
    TooManyCandidatesError,
)
from terrace_gateway.guardrails.secret_rules import secret_rules

from .guardrail_samples import INNOCENT, PERSONAL, SECRETS

pytestmark = pytest.mark.unit

SMALL = RuleSet(
    [
        Rule("word", r"\bab{1,3}c\b"),
        Rule("overlap", r"(?:d|de|def)(?:x|xy)?"),
        Rule("group", r"k=(\w{2,5})"),
        Rule("digits", r"\b\d(?:[ -]?\d){3,6}\b", lambda text: text[-1] in "02468"),
        Rule("not-after", r"\bx{1,2}\b", not_after=b"-="),
        Rule("wide", r"é.?z", ignore_case=True),
        Rule("tail", r"BE", tail="[a-c ]"),
        Rule("other-tail", r"a1", tail="[a-y1B=]"),
    ]
)
LIBRARY = RuleSet(
    [*secret_rules(None), *personal_rules(DEFAULT_PERSONAL_DATA, phone_regions=("US", "DE"))]
)
PLANTED = [text for text, _ in (*SECRETS.values(), *PERSONAL.values())]


def whole(rules: RuleSet, text: str) -> tuple[str, set[str]]:
    scan = Scan(rules)
    return scan.feed(text.encode(), end=True).decode(), set(scan.found)


def in_parts(rules: RuleSet, parts: list[str]) -> tuple[str, set[str]]:
    part_filter = RuleFilter(rules, hold=True)
    shown = "".join(part_filter.feed(part) for part in parts) + part_filter.flush()
    assert part_filter.held == 0
    return shown, set(part_filter.found)


def cut(text: str, places: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(borders)]


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.text(alphabet="abcdefxyk=w12 -éz\nÉBE", max_size=6), max_size=12))
def test_any_cut_gives_what_the_whole_text_gives(parts: list[str]) -> None:
    assert in_parts(SMALL, parts) == whole(SMALL, "".join(parts))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(PLANTED), st.sampled_from(INNOCENT), st.text(max_size=12),
            st.sampled_from([" ", "\n", "-", "1", "=", "@", "."]),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 10_000), max_size=30),
)  # fmt: skip
def test_the_library_finds_the_same_however_the_text_is_cut(
    pieces: list[str], places: list[int]
) -> None:
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert in_parts(LIBRARY, cut(text, places)) == whole(LIBRARY, text)


@pytest.mark.parametrize("name", [*SECRETS, *sorted(set(PERSONAL) - {"ip-address", "mac-address"})])
def test_one_character_at_a_time_no_piece_of_a_secret_is_shown(name: str) -> None:
    text, gone = (SECRETS | PERSONAL)[name]
    part_filter = RuleFilter(LIBRARY, hold=True)
    shown = ""
    for sign in f"Before. {text} After.":
        shown += part_filter.feed(sign)
        assert gone[: max(8, len(gone) // 2)] not in shown
    shown += part_filter.flush()
    assert gone not in shown
    assert shown.startswith("Before.")
    assert "[masked:" in shown


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab1@.-_ =:/+", max_size=400))
def test_what_is_held_back_is_bounded(text: str) -> None:
    scan = Scan(LIBRARY)
    for sign in text:
        scan.feed(sign.encode())
        assert scan.held <= 4 * LIBRARY.span + 1


def test_prose_is_hardly_held_back() -> None:
    scan = Scan(LIBRARY)
    held: list[int] = []
    for word in ("The quick brown fox jumps over the lazy dog, and then it sleeps. " * 20).split(
        " "
    ):
        scan.feed(f"{word} ".encode())
        held.append(scan.held)
    assert max(held) <= 8


def test_a_held_token_passes_in_a_pause_and_the_rest_of_it_does_not() -> None:
    part_filter = RuleFilter(LIBRARY, hold=True)
    assert part_filter.feed("ghp_" + "a" * 20) == ""
    assert part_filter.flush() == "ghp_" + "a" * 20
    assert not part_filter.late
    assert part_filter.feed("a" * 15) == ""
    assert part_filter.flush() == "a" * 15
    assert part_filter.feed("a ") == "[masked:github-token]"
    assert (part_filter.found, part_filter.late) == (("github-token",), True)


@pytest.mark.parametrize("name", [*SECRETS, *sorted(set(PERSONAL) - {"ip-address", "mac-address"})])
def test_a_secret_with_pauses_in_it_is_masked_or_found_too_late(name: str) -> None:
    text, gone = (SECRETS | PERSONAL)[name]
    text = f"Before. {text} After."
    at = text.index(gone)
    for place in range(at - 8, at + len(gone) + 1):
        part_filter = RuleFilter(LIBRARY, hold=True)
        shown = part_filter.feed(text[:place]) + part_filter.flush()
        early, rest = shown, ""
        for sign in text[place:]:
            rest += part_filter.feed(sign)
            if part_filter.late:
                break
        else:
            rest += part_filter.flush()
        assert part_filter.late or gone not in early + rest, (name, place)
        # Of what comes after the pause nothing is shown that belongs to it.
        tail = gone[max(0, place - at) :]
        assert len(tail) < 4 or not rest.startswith(tail[:4]), (name, place)


@settings(max_examples=800, deadline=None)
@given(st.lists(st.text(alphabet="abcdefxyk=w12 -éz\nÉBE", max_size=6), max_size=8))
def test_pauses_hide_nothing_from_a_scan(parts: list[str]) -> None:
    part_filter = RuleFilter(SMALL, hold=True)
    raw = ""
    for part in parts:
        part_filter.feed(part)
        part_filter.flush()
        raw += part
        assert part_filter.held == 0
    assert whole(SMALL, raw)[1] <= set(part_filter.found)


@settings(max_examples=800, deadline=None)
@given(
    st.text(alphabet="abcdefxyk=w12 -éz\nÉBE", max_size=20),
    st.text(alphabet=" .,", max_size=3),
    st.lists(st.text(alphabet="abcdefxyk=w12 -éz\nÉBE", max_size=6), max_size=8),
)
def test_what_follows_a_pause_is_scanned_as_in_the_whole(
    before: str, gap: str, parts: list[str]
) -> None:
    """A pause where no match can reach over changes nothing."""
    text = before + gap + "\0\0"
    rest = "".join(parts)
    part_filter = RuleFilter(SMALL, hold=True)
    shown = part_filter.feed(text) + part_filter.flush()
    shown += "".join(map(part_filter.feed, parts)) + part_filter.flush()
    assert (shown, set(part_filter.found)) == whole(SMALL, text + rest)
    assert not part_filter.late


def test_lone_surrogates_pass_unchanged() -> None:
    part_filter = RuleFilter(LIBRARY, hold=True)
    text = "x\ud83d y\ude00 jo@acme.example"
    shown = "".join(part_filter.feed(sign) for sign in text) + part_filter.flush()
    assert shown == "x\ud83d y\ude00 [masked:email]"


def test_a_text_that_is_made_to_be_slow_is_given_up() -> None:
    scan = Scan(SMALL)
    with pytest.raises(TooManyCandidatesError):
        scan.feed(b"1111 " * (MAX_CANDIDATES + 1), end=True)


def test_an_endless_token_does_not_hold_for_ever() -> None:
    scan = Scan(LIBRARY)
    shown = b"".join(scan.feed(b"a" * 100) for _ in range(1000))
    assert len(shown) > 90_000
    assert shown + scan.feed(b"", end=True) == b"a" * 100_000
