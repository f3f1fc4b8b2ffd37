"""The user's own words and patterns as rules."""

import re

from terrace_common.governance.guardrails import ContentGuardrail
from terrace_gateway.guardrails.scan import Rule


def content_rules(section: ContentGuardrail) -> list[Rule]:
    """One rule per pattern, named as it is, and one for all words, named ``words``."""
    rules = [
        Rule(pattern.name, pattern.pattern, ignore_case=pattern.ignore_case)
        for pattern in section.patterns
    ]
    for index in range(0, len(section.words), _WORDS_PER_RULE):
        some = sorted(section.words[index : index + _WORDS_PER_RULE], key=len, reverse=True)
        rules.append(Rule("words", "|".join(_word(word) for word in some), ignore_case=True))
    return rules


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
