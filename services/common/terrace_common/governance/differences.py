"""The diff of two specs, subject by subject and field by field. Pure and in a fixed order."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel

from terrace_common.governance.plan import Action, Change
from terrace_common.governance.spec import Governance

LONGEST_VALUE = 160
"""Characters of a value in a detail."""

Fields = Mapping[str, object]


def differences(old: Governance | None, new: Governance) -> tuple[Change, ...]:
    """What was added, changed and removed. Without ``old`` everything is added."""
    return tuple(_differences(old, new))


def _differences(old: Governance | None, new: Governance) -> Iterator[Change]:
    before = {} if old is None else _plain(old)
    after = _plain(new)
    for section in sorted(set(before) | set(after)):
        one, other = before.get(section), after.get(section)
        if _named(one) or _named(other):
            yield from _of_list(_singular(section), _named(one), _named(other))
        elif section != "version" and one != other and old is not None:
            action: Action = "added" if one is None else "removed" if other is None else "changed"
            yield Change(action, "setting", section, (f"{_text(one)} -> {_text(other)}",))


def _named(value: object) -> list[Fields]:
    """The items of a list of subjects; empty for anything else."""
    items = _list(value)
    named = items is not None and all(isinstance(item, dict) and "name" in item for item in items)
    return cast("list[Fields]", items) if named else []


def _list(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def _of_list(kind: str, before: Sequence[Fields], after: Sequence[Fields]) -> Iterator[Change]:
    old = {str(item["name"]): item for item in before}
    new = {str(item["name"]): item for item in after}
    for name in sorted(set(old) | set(new)):
        if name not in old:
            yield Change("added", kind, name, tuple(_said(new[name])))
        elif name not in new:
            yield Change("removed", kind, name)
        elif details := tuple(_changed(old[name], new[name])):
            yield Change("changed", kind, name, details)


def _said(item: Fields) -> Iterator[str]:
    for field in sorted(set(item) - {"name"}):
        yield f"{field}: {_text(item[field])}"


def _changed(old: Fields, new: Fields) -> Iterator[str]:
    for field in sorted(set(old) | set(new)):
        one, other = old.get(field), new.get(field)
        if one == other:
            continue
        gone, come = _less(one, other), _less(other, one)
        if gone or come:
            yield from (f"{field}: - {_text(item)}" for item in gone)
            yield from (f"{field}: + {_text(item)}" for item in come)
        else:
            yield f"{field}: {_text(one)} -> {_text(other)}"


def _less(value: object, other: object) -> list[object]:
    """Items of one list that are not in another; nothing if either is something else."""
    items, others = _list(value), _list(other)
    if (items is None and value is not None) or (others is None and other is not None):
        return []
    return [item for item in items or () if item not in (others or ())]


def _singular(section: str) -> str:
    return "policy" if section == "policies" else section.removesuffix("s")


def _plain(spec: BaseModel) -> dict[str, object]:
    """What the spec says, without what it leaves at its default."""
    return spec.model_dump(mode="json", exclude_defaults=True, by_alias=True)


def _text(value: object) -> str:
    if value is None:
        return "unset"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
