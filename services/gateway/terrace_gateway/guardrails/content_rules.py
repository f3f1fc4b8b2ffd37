"""The user's own words and patterns as rules, and which of them RE2 refuses."""

import re
from collections.abc import Iterator

from terrace_common.governance import Governance
from terrace_common.governance.guardrails import ContentGuardrail, ContentPattern
from terrace_common.governance.sections import Problem
from terrace_gateway.guardrails.scan import Rule, RuleSet


def content_problems(governance: Governance) -> Iterator[Problem]:
    """Places of patterns that have a bound and that RE2 refuses all the same, as too large."""
    for index, section in enumerate(governance.guardrails):
        if isinstance(section, ContentGuardrail):
            for where, what in _problems(section):
                yield ("guardrails", index, *where), f"guardrail {section.name!r}: {what}"


def _problems(section: ContentGuardrail) -> Iterator[Problem]:
    try:
        RuleSet(content_rules(section))
    except ValueError as error:
        whole = str(error)
    else:
        return
    single = False
    for index, pattern in enumerate(section.patterns):
        try:
            RuleSet([_rule(pattern)])
        except ValueError as error:
            single = True
            yield (
                ("patterns", index, "pattern"),
                f"pattern {pattern.name!r}: {error}; repeat less often, or narrower classes",
            )
    if not single:
        yield (), f"{whole}; split it into several guardrails"


def content_rules(section: ContentGuardrail) -> list[Rule]:
    """One rule per pattern, named as it is, and one for all words, named ``words``."""
    rules = [_rule(pattern) for pattern in section.patterns]
    for index in range(0, len(section.words), _WORDS_PER_RULE):
        some = sorted(section.words[index : index + _WORDS_PER_RULE], key=len, reverse=True)
        rules.append(Rule("words", "|".join(_word(word) for word in some), ignore_case=True))
    return rules


def _rule(pattern: ContentPattern) -> Rule:
    return Rule(pattern.name, pattern.pattern, ignore_case=pattern.ignore_case)


_WORDS_PER_RULE = 12  # a pattern has a greatest length


def _word(word: str) -> str:
    parts = [re.sub(r"([^\w\s])", r"\\\1", part, flags=re.ASCII) for part in word.split()]
    escaped = r"\s{1,4}".join(_plain(part) for part in parts)
    begin = r"\b" if re.match(r"\w", word, re.ASCII) else ""
    end = r"\b" if re.search(r"\w\Z", word, re.ASCII) else ""
    return f"{begin}{escaped}{end}"


def _plain(part: str) -> str:
    # An escaped letter beyond ASCII is no escape that RE2 knows.
    return re.sub(r"\\([^\x00-\x7f])", r"\1", part)
