"""No text of others breaks a line or is obeyed, and people's own writing stays as it is."""

import pytest

from terrace_common.one_line import one_line

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "text",
    [
        "raison\u00a0: budget d\u00e9pass\u00e9",
        "\u7406\u7531\u3000\u4e88\u7b97",
        "\U0001f600 \u0639",
    ],
)
def test_blanks_and_letters_of_any_script_stay(text: str) -> None:
    assert one_line(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m\x9b", r"\x1b[31m\x9b"),
        ("\u202e\u2066\u200b", r"\u202e\u2066\u200b"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\ud83d", r"\ud83d"),
    ],
)
def test_what_a_terminal_obeys_is_an_escape(text: str, shown: str) -> None:
    assert one_line(text) == shown
