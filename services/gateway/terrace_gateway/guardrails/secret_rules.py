"""The library of secrets: shapes that their issuers document, and assignments to telling names."""

import math
from collections import Counter

from terrace_common.governance.guardrails import SecretRule
from terrace_gateway.guardrails.scan import Rule

_PEM_TAIL = r"[A-Za-z0-9+/=\\\r\n\t ]"
_PLACEHOLDERS = (
    "change", "dummy", "example", "fake", "password", "placeholder", "redacted", "sample", "secret",
    "undefined", "xxx", "your", "...", "://",
)  # fmt: skip
MIN_BITS_PER_CHARACTER = 3.0
"""Of an assigned value. English words of 8 to 20 letters are mostly below it, random ones above."""


def is_random(value: str) -> bool:
    """Whether a value that is assigned to a telling name looks like a secret, not like a word.

    It has letters and a digit, no placeholder, and Shannon entropy of its characters of at least
    ``MIN_BITS_PER_CHARACTER``, or as much as its length allows. A passphrase of words is not found.
    """
    lowered = value.lower()
    if any(word in lowered for word in _PLACEHOLDERS) or value.startswith(("$", "<", "{", "%")):
        return False
    if not (any(sign.isdigit() for sign in value) and any(sign.isalpha() for sign in value)):
        return False
    counts = Counter(value)
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return bits >= min(MIN_BITS_PER_CHARACTER, 0.85 * math.log2(len(value)))


def is_filled_in(value: str) -> bool:
    """Whether a value is one, and no sign for one such as ``...``, ``$PASSWORD`` or ``****``."""
    return value[0] not in "$<{%*[" and any(sign.isalnum() for sign in value)


_RULES: dict[SecretRule, Rule] = {
    rule.name: rule  # pyright: ignore[reportAssignmentType]  # names are compared in a test
    for rule in (
        Rule("terrace-key", r"\b(?:tk|tadm)-[A-Za-z0-9_-]{32,64}"),
        Rule("anthropic-key", r"\bsk-ant-[A-Za-z0-9_-]{24,140}"),
        Rule(
            "openai-key",
            r"\bsk-(?:(?:proj|svcacct|admin)-[A-Za-z0-9_-]{24,200}|[A-Za-z0-9]{32,64}\b)",
        ),
        Rule("aws-access-key-id", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
        Rule(
            "aws-secret-key",
            r"\baws.{0,20}?(?:secret|sk).{0,24}?[\"'\s:=]([A-Za-z0-9/+]{40})\b",
            is_random,
            ignore_case=True,
        ),
        Rule("azure-storage-key", r"\bAccountKey=([A-Za-z0-9+/]{80,88}={0,2})"),
        Rule("google-api-key", r"\bAIza[A-Za-z0-9_-]{35}"),
        Rule(
            "github-token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,255})"
        ),
        Rule("gitlab-token", r"\bgl(?:pat|dt|rt|ptt|agent|soat)-[A-Za-z0-9_.-]{20,100}"),
        Rule("huggingface-token", r"\bhf_[A-Za-z0-9]{30,60}\b"),
        Rule("npm-token", r"\bnpm_[A-Za-z0-9]{36}\b"),
        Rule("pypi-token", r"\bpypi-AgE[A-Za-z0-9_-]{50,250}"),
        Rule("sendgrid-key", r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
        Rule("slack-token", r"\bxox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,250}"),
        Rule(
            "slack-webhook",
            r"\bhttps://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,120}",
        ),
        Rule(
            "stripe-key",
            r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,200}|\bwhsec_[A-Za-z0-9+/=]{24,100}",
        ),
        Rule("twilio-key", r"\bSK[0-9a-f]{32}\b"),
        Rule(
            "jwt", r"\beyJ[A-Za-z0-9_-]{8,400}\.eyJ[A-Za-z0-9_-]{8}", tail="[A-Za-z0-9_.-]"
        ),
        Rule(
            "private-key",
            r"-----BEGIN (?:[A-Z0-9]{2,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"|\bDEK-Info: [A-Za-z0-9-]{3,30},[0-9A-Fa-f]{16,64}",
            tail=_PEM_TAIL,
        ),
        Rule(
            "connection-password",
            r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"']{0,64}:([^\s@/\"']{3,128})@[A-Za-z0-9\[]",
            is_filled_in,
            ignore_case=True,
        ),
        Rule(
            "bearer-token",
            r"\b(?:bearer|authorization\W{1,4}(?:token|basic))\s{1,3}([A-Za-z0-9_.~+/=-]{20,500})",
            is_random,
            ignore_case=True,
        ),
        Rule(
            "generic-assignment",
            r"(?:passw(?:or)?d|pwd|passphrase|secret|token|api[_-]?key|access[_-]?key"
            r"|private[_-]?key|credentials?)(?:[_-][a-z0-9_-]{1,20})?"
            r"\\?[\"']?\s{0,3}(?::=|=>|=|:)\s{0,3}\\?[\"']?"
            r"([^\s\"'`,;=<>(){}\[\]\\]{8,128}={0,2})",
            is_random,
            ignore_case=True,
        ),
    )
}  # fmt: skip


def secret_rules(names: tuple[SecretRule, ...] | None) -> list[Rule]:
    """Rules of the library by name; ``None``: all."""
    return [_RULES[name] for name in (names or tuple(_RULES))]


def secret_rule_names() -> frozenset[str]:
    """Names of the library's rules."""
    return frozenset(_RULES)
