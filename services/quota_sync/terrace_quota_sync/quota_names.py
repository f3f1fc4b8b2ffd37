"""What the name of a Bedrock quota says, and which model of the catalogue it means. Pure.

AWS has one quota per model, unit and way of calling. Codes differ per model and are stored, never
matched; what is stable is the pattern of names: ``On-demand InvokeModel tokens per minute for
${model}``. A model is called in words there, and its id is what we have: both are taken apart into
words and numbers, and must have the same ones.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

NameKind = Literal["direct", "cross-region", "global", "any", "region"]
"""``any``: counts whichever way a model is called. ``region``: all models of the region."""
QuotaDimension = Literal["requests", "total_tokens"]
SECONDS = {"minute": 60, "day": 86_400}

_KINDS: dict[str, NameKind] = {
    "on-demand": "direct",
    "cross-region": "cross-region",
    "global cross-region": "global",
}
_RATE = re.compile(
    r"(?P<kind>on-demand|global cross-region|cross-region) (?:invokemodel|model inference)"
    r" (?P<unit>tokens|requests) per (?P<per>minute|day) for (?P<model>.+)"
)
_DAILY = re.compile(
    r"(?:(?P<kind>on-demand|global cross-region|cross-region) )?model invocation max tokens per day"
    r" for (?P<model>.+)"
)
_ALL_MODELS = re.compile(r"cross-model max tokens per day")
# AWS doubles it for calls through a profile; we count as if it did not.
_DOUBLED = re.compile(r" \(doubled for cross-region calls\)$")
_SPACES = re.compile(r"\s+")
_WORDS = re.compile(r"[a-z]+|[0-9]+")
_VERSION = re.compile(r"(?:^|[\s-])v(?P<number>[0-9]+)(?:[:.][0-9]+)*$")
_DATE = re.compile(r"(?:^|-)20[0-9]{6}(?=$|-)")
_BUILD = re.compile(r"(?<=[a-z0-9])-[0-9]+:[0-9]+$")  # openai.gpt-oss-120b-1:0
_VAGUE = frozenset({"labs", "ai", "model"})

Key = tuple[tuple[str, ...], int]
"""Words and numbers in order of the alphabet, and the version."""


@dataclass(frozen=True, slots=True)
class QuotaName:
    """A quota that limits calls of a model."""

    kind: NameKind
    dimension: QuotaDimension
    window_seconds: int
    model: Key | None
    """``None``: all models together."""


def parse_quota_name(name: str) -> QuotaName | None:
    """What a quota limits; ``None``: nothing that calls on demand draw on (provisioned throughput,
    batch jobs, latency-optimised inference, ...)."""
    text = _SPACES.sub(" ", name.strip().lower())
    if _ALL_MODELS.fullmatch(text):
        return QuotaName("region", "total_tokens", SECONDS["day"], None)
    text = _DOUBLED.sub("", text)
    if (found := _RATE.fullmatch(text)) is not None:
        return QuotaName(
            _KINDS[found["kind"]],
            "requests" if found["unit"] == "requests" else "total_tokens",
            SECONDS[found["per"]],
            model_key(found["model"]),
        )
    if (found := _DAILY.fullmatch(text)) is not None:
        kind: NameKind = "any" if found["kind"] is None else _KINDS[found["kind"]]
        return QuotaName(kind, "total_tokens", SECONDS["day"], model_key(found["model"]))
    return None


def model_key(text: str) -> Key:
    """What a model is known by, from its id or from its name in words with the vendor's.

    ``anthropic.claude-3-5-sonnet-20241022-v2:0`` and ``Anthropic Claude 3.5 Sonnet V2`` have the
    same. A version that is not said is the first; 0 counts as the first as well.
    """
    text = _SPACES.sub(" ", text.strip().lower())
    version = 1
    if (found := _VERSION.search(text)) is not None:
        version = max(1, int(found["number"]))
        text = text[: found.start()]
    else:
        text = _BUILD.sub("", text)
    text = _DATE.sub("", text)
    vendor, *rest = _WORDS.findall(text) or [""]
    # The vendor once: "mistral.mistral-large" and "Mistral AI Mistral Large" alike.
    words = [word for word in rest if word != vendor and word not in _VAGUE]
    return tuple(sorted([vendor, *words])), version


def keys_of(model_id: str, names: Iterable[str]) -> frozenset[Key]:
    """What a model may be called in a quota: its id, and its names in words if there are some."""
    return frozenset({model_key(model_id), *(model_key(name) for name in names)})
