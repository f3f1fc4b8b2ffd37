"""What ``ApplyGuardrail`` answers, by names of policies only: matched text stays out."""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from terrace_gateway.guardrails.port import GuardrailFailedError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Assessment:
    """One answer, read."""

    action: Literal["allow", "flag", "mask", "block"]
    rules: tuple[str, ...]
    outputs: tuple[str, ...]
    units: Mapping[str, int]
    """Text units per policy, as they are charged."""


# Policy, its list, the field that names an item (none: the item's own text is matched text).
_POLICIES: tuple[tuple[str, str, str, str | None], ...] = (
    ("topicPolicy", "topics", "topic", "name"),
    ("contentPolicy", "filters", "content", "type"),
    ("wordPolicy", "customWords", "word", None),
    ("wordPolicy", "managedWordLists", "word", "type"),
    ("sensitiveInformationPolicy", "piiEntities", "pii", "type"),
    ("sensitiveInformationPolicy", "regexes", "regex", "name"),
    ("contextualGroundingPolicy", "filters", "grounding", "type"),
)


def read_assessments(body: bytes) -> Assessment:
    """Read the answer. Raises ``GuardrailFailedError`` for what is none."""
    try:
        answer = _object(json.loads(body))
    except (ValueError, RecursionError):
        raise GuardrailFailedError("Bedrock's answer is no JSON") from None
    intervened = answer.get("action")
    if intervened not in ("NONE", "GUARDRAIL_INTERVENED"):
        raise GuardrailFailedError("Bedrock's answer has no action that is known")
    actions: set[object] = set()
    rules: dict[str, None] = {}
    for assessment in _objects(answer.get("assessments")):
        for action, rule in _items(assessment):
            actions.add(action)
            rules[rule] = None
    outputs = tuple(
        text if isinstance(text := output.get("text"), str) else ""
        for output in _objects(answer.get("outputs"))
    )
    if intervened == "NONE":
        action = "flag" if rules else "allow"
    elif "ANONYMIZED" in actions and not actions - {"ANONYMIZED", "NONE"}:
        action = "mask"
    else:  # also when it intervened and does not say how
        action = "block"
    return Assessment(action, tuple(rules), outputs, _units(answer.get("usage")))


def _items(assessment: Mapping[str, object]) -> Generator[tuple[object, str]]:
    for policy, items, kind, named_by in _POLICIES:
        for item in _objects(_object(assessment.get(policy)).get(items)):
            if item.get("detected") is False and item.get("action") == "NONE":
                continue
            name = item.get(named_by) if named_by is not None else "custom"
            known = isinstance(name, str) and _NAME.fullmatch(name)
            yield item.get("action"), f"{kind}:{name if known else 'unnamed'}"


def _units(usage: object) -> dict[str, int]:
    units: dict[str, int] = {}
    for name, count in _object(usage).items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise GuardrailFailedError("Bedrock's answer has a usage that is no count")
        units[name] = count
    if not units:
        raise GuardrailFailedError("Bedrock's answer has no usage")
    return units


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, object]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
