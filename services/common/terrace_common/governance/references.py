"""References that lead nowhere, read off the plain document of a spec whose values are not valid.

The checks of a whole spec need its sections valid. So that a misspelt name is told with a misspelt
key and not only after it, names are looked up here where those checks could not run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from terrace_common.governance.sections import Problem, missing, undeclared

Item = Mapping[str, object]

_REFERENCES: Mapping[str, Mapping[str, str]] = {
    "models": {"provider": "providers", "fallbacks": "models"},
    "orgs": {"policies": "policies"},
    "teams": {"org": "orgs", "policies": "policies"},
    "users": {"team": "teams", "policies": "policies"},
    "apps": {"team": "teams", "user": "users", "policies": "policies"},
    "keys": {
        "app": "apps", "user": "users", "team": "teams", "models": "models", "policies": "policies",
    },
    "policies": {
        "extends": "policies", "models": "models", "deny_models": "models",
        "providers": "providers", "deny_providers": "providers", "guardrails": "guardrails",
    },
}  # fmt: skip
"""Section -> field -> the section whose names it holds, one or a list."""
_NOUNS = {"policies": "policy"}


def reference_problems(data: object, sections: Iterable[str]) -> Iterator[Problem]:
    """``sections``: the keys that a spec has.

    A section of which not every name can be read is not looked up in, nor one that is left out
    while a key of the file is unknown: it may be that one.
    """
    if not isinstance(data, dict):
        return
    document = cast("dict[str, object]", data)
    stray = bool(document.keys() - set(sections))
    known = {
        name: names
        for name in {target for fields in _REFERENCES.values() for target in fields.values()}
        if (name in document or not stray) and (names := _names(document.get(name, ()))) is not None
    }
    for section, fields in _REFERENCES.items():
        for index, item in _items(document.get(section)):
            for field, target in fields.items():
                if target in known:
                    path = (section, index, field)
                    yield from _unknown(path, item.get(field), _noun(target), known[target])


def _unknown(
    path: tuple[str, int, str], value: object, noun: str, known: set[str]
) -> Iterator[Problem]:
    if isinstance(value, str):
        if value not in known:
            yield path, missing(noun, value, known)
    elif isinstance(value, list):
        names = cast("list[object]", value)
        if all(isinstance(name, str) for name in names):
            yield from undeclared(path, noun, cast("list[str]", names), known)


def _names(section: object) -> set[str] | None:
    """Names and aliases of a section; ``None``: some item has none that can be read."""
    if not isinstance(section, Sequence) or isinstance(section, str):
        return None
    found: set[str] = set()
    for item in cast("Sequence[object]", section):
        if not isinstance(item, dict):
            return None
        fields = cast("dict[str, object]", item)
        aliases: object = fields.get("aliases", [])
        if not isinstance(aliases, list):
            return None
        for name in (fields.get("name"), *cast("list[object]", aliases)):
            if not isinstance(name, str):
                return None
            found.add(name)
    return found


def _items(section: object) -> Iterator[tuple[int, Item]]:
    if isinstance(section, list):
        for index, item in enumerate(cast("list[object]", section)):
            if isinstance(item, dict):
                yield index, cast("Item", item)


def _noun(section: str) -> str:
    return _NOUNS.get(section, section[:-1])
