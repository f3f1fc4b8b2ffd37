"""The golden resource graph of a stack: what it is made of, without what differs between runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# The engine's own bookkeeping; nobody's input.
_NOISE = frozenset({"__defaults", "__internal", "pulumi.com/autonamed"})
# What ids, ARNs and made-up names have in them, and certificates.
_RANDOM = re.compile(r"[0-9a-fA-F]{7}|[A-Za-z0-9+/=]{200}")
_PREFERRED = ("id", "arn", "name")


def graph_rows(
    resources: Sequence[Mapping[str, Any]], beneath: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Rows (type, name, parent, inputs) of a state, sorted.

    ``resources`` is `pulumi stack export`'s list, ``beneath`` that of the stack that this one
    stands on. In the inputs every id, ARN, name or address
    that the cloud made up is written as the resource that it belongs to (``<Vpc network.id>``):
    a row says what refers to what, and is the same in every run.
    """
    made_up = _made_up([*resources, *beneath])
    rows = [
        {
            "type": resource["type"],
            "name": _name(resource["urn"]),
            "parent": _name(resource.get("parent", "")),
            "inputs": _trimmed(resource.get("inputs", {}), made_up),
        }
        for resource in resources
        if not resource["type"].startswith("pulumi:pulumi:")
    ]
    return sorted(rows, key=lambda row: (row["type"], row["name"]))


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]


def _made_up(resources: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(value, what to write for it), longest first."""
    owners: dict[str, tuple[int, str, str, str]] = {}
    for resource in resources:
        if not resource.get("custom") or resource["type"].startswith("pulumi:"):
            continue
        name, inputs = _name(resource["urn"]), resource.get("inputs", {})
        for path, value in _texts({"id": resource["id"], **resource.get("outputs", {})}):
            # A name that Pulumi made up is an input too; everything else that is one is a
            # reference to what another resource owns, or the program's own choice.
            named_after = value.lower().startswith(f"{name[:20].lower()}")
            given = path != "id" and any(value == other for _, other in _texts(inputs))
            if _RANDOM.search(value) and (named_after or not given):
                rank = _PREFERRED.index(path) if path in _PREFERRED else len(_PREFERRED)
                owner = (rank, resource["type"].rpartition(":")[2], name, path)
                owners[value] = min(owner, owners.get(value, owner))
    found = [(value, f"<{kind} {name}.{path}>") for value, (_, kind, name, path) in owners.items()]
    return sorted(found, key=lambda one: (-len(one[0]), one))


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of every text in a value."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")


def _trimmed(value: Any, made_up: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, Mapping):
        kept = {k: _trimmed(v, made_up) for k, v in value.items() if k not in _NOISE}
        return {k: v for k, v in kept.items() if v is not None}
    if isinstance(value, list):
        return [_trimmed(item, made_up) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _RANDOM.search(value):
        for invented, stand_in in made_up:
            value = value.replace(invented, stand_in)
    return value
