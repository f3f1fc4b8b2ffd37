"""docs/policies.md has the rules as they are, and `explain` tells what a person needs."""

from pathlib import Path

import pytest

from terrace_policies.book import rules
from terrace_policies.configuration import RULE_ID
from terrace_policies.documentation import explanation, parameter_table, table, with_tables
from terrace_policies.model import Rule

PAGE = Path(__file__).resolve().parents[3] / "docs" / "policies.md"


def test_the_page_is_fresh() -> None:
    text = PAGE.read_text()
    assert with_tables(text) == text, "run `terrace policy table`"
    assert table() in text
    assert parameter_table() in text


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="the marks of the table of rules are missing"):
        with_tables("# Policies\n")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_an_explanation_has_the_reason_the_remedy_and_two_examples(rule: Rule) -> None:
    text = explanation(rule)
    for part in (rule.id, rule.severity.value, rule.description, rule.why, rule.remediation):
        assert part in text
    assert all(str(reference) in text for reference in rule.references)
    assert all(name in text for name in rule.parameters)
    if rule.id != RULE_ID:
        assert "\nGood\n" in text
        assert "\nBad: the same, but\n" in text
