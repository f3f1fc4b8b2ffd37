"""Patterns of users: what is taken can be bounded, and RE2 takes it too."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrace_common.bounded_pattern import PatternError, parse_bounded
from terrace_gateway.linear_search import compile_pattern

pytestmark = pytest.mark.unit

ATOMS = st.sampled_from(
    ["a", "b", "é", ".", r"\d", r"\w", r"\s", "[ab]", "[^a]", "[a-c\\d]", r"\.", r"\p{Lu}", r"\b"]
)
REPEATS = st.sampled_from(["", "", "?", "{2}", "{0,2}", "{1,3}", "{1,2}?"])


def _patterns(depth: int = 2) -> st.SearchStrategy[str]:
    if depth == 0:
        return st.builds(_repeated, ATOMS, REPEATS)
    inner = _patterns(depth - 1)
    return st.one_of(
        inner,
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds(lambda a, b, r: f"(?:{a}|{b}){r}", inner, inner, REPEATS),
        st.builds(lambda a, r: f"({a}){r}", inner, REPEATS),
    )


def _repeated(atom: str, repeat: str) -> str:
    return atom if atom == r"\b" else atom + repeat


@settings(max_examples=400, deadline=None)
@given(_patterns(), st.text(alphabet="abcé.1 Z\n", max_size=20))
def test_what_is_taken_compiles_and_no_match_is_longer_than_its_bound(
    pattern: str, text: str
) -> None:
    try:
        bounded = parse_bounded(pattern)
    except PatternError:
        return
    compiled = compile_pattern(pattern)
    beginnings = compile_pattern(rf"(?:{bounded.prefixes})\z")
    found = compiled.search(text.encode())
    if found is None:
        return
    start, stop = found.span()
    matched = text.encode()[start:stop].decode()
    assert bounded.least <= len(matched) <= bounded.span
    # Each beginning of the match is known as one, whatever comes next.
    for length in range(len(matched) + 1):
        part = text.encode()[:start] + matched[:length].encode()
        held = beginnings.search(part)
        assert held is not None
        assert held.span()[0] <= start


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a*", "no bound"),
        ("a+", "no bound"),
        ("a{2,}", "no bound"),
        ("(a{100}){100}", "more than 1000"),
        ("a{1001}", "0 to 1000"),
        ("a{3,2}", "in order"),
        ("a?", "empty text"),
        ("(?i)a", "only (?: )"),
        ("(?=a)b", "only (?: )"),
        (r"(a)\1", "not known"),
        ("^a", "no lines"),
        ("a$", "no lines"),
        ("a)", "closes nothing"),
        ("(a", "not closed"),
        ("[a", "not closed"),
        ("[b-a]", "class"),
        ("a{x}", "write"),
        ("a{2}{3}", "two repetitions"),
        ("*a", "repeats nothing"),
        (r"\b{2}a", "assertion"),
        (r"\p{Klingon}", "not known"),
        ("[[:vowel:]]", "not known"),
        (r"\x{110000}", "no character"),
        ("(" * 40 + "a" + ")" * 40, "nested"),
        ("", "1 to 2000"),
        ("a" * 2001, "1 to 2000"),
    ],
)
def test_what_cannot_be_bounded_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse_bounded(pattern)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "least", "span"),
    [
        ("abc", 3, 3),
        ("ab?c", 2, 3),
        ("(?:ab|c){2,4}", 2, 8),
        (r"\bID-\d{6}\b", 9, 9),
        ("é{2}", 2, 2),
        ("[[:alpha:]]{1,3}", 1, 3),
    ],
)
def test_bounds(pattern: str, least: int, span: int) -> None:
    bounded = parse_bounded(pattern)
    assert (bounded.least, bounded.span) == (least, span)
    compile_pattern(pattern)
