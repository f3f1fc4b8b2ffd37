"""Reads what ``pulumi stack export`` wrote: the resources of a stack, without Pulumi."""

import json
from collections.abc import Mapping
from typing import Any, cast

from terrace_policies.resources import (
    ENCRYPTED,
    UNTIL_THE_UPDATE,
    Resource,
    Stack,
    Unknown,
    unknowns,
)

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  the mark of one, not one
OUTPUT_VALUE = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
# What stands for a value that the engine does not know yet, one mark per type.
UNKNOWN_MARKS = frozenset({
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
    "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
    "030794c1-ac77-496b-92df-f27374a8bd58",
    "e48ece36-62e2-4504-bad9-02848725956a",
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
})  # fmt: skip


class StateError(ValueError):
    """The file is no stack export; the message says what it is instead."""


def property_tree(value: Any) -> Any:
    """A value as rules read it: secrets opened, unknown and encrypted values as ``Unknown``."""
    if isinstance(value, str):
        return Unknown(UNTIL_THE_UPDATE) if value in UNKNOWN_MARKS else value
    if isinstance(value, list):
        return [property_tree(item) for item in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    given = cast(Mapping[str, Any], value)
    mark = given.get(SIGNATURE)
    if mark == SECRET:
        return _secret(given)
    if mark == OUTPUT_VALUE:
        return property_tree(given["value"]) if "value" in given else Unknown()
    return {key: property_tree(item) for key, item in given.items()}


def merged(inputs: Mapping[str, Any] | None, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """A resource as stack rules read it: its inputs, and those outputs that are known."""
    if inputs is None:
        return outputs
    known = {key: value for key, value in outputs.items() if not any(unknowns(value))}
    return {**known, **inputs}


def _secret(given: Mapping[str, Any]) -> Any:
    if "plaintext" in given:
        return property_tree(json.loads(given["plaintext"]))
    if "value" in given:
        return property_tree(given["value"])
    return Unknown(ENCRYPTED)


def read_state(text: str, source: str) -> tuple[list[Resource], Stack]:
    """The resources with their inputs, for resource rules, and the stack with its state.

    ``source`` names the file in errors. Raises ``StateError``.
    """
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise StateError(f"{source}: not JSON: {error}") from None
    deployment = data.get("deployment") if isinstance(data, dict) else None
    # A stack without resources has no such key.
    listed = deployment.get("resources", []) if isinstance(deployment, dict) else None
    if not isinstance(listed, list):
        raise StateError(
            f"{source}: no list `deployment.resources`; give the output of `pulumi stack export`"
        )
    inputs: list[Resource] = []
    states: list[Resource] = []
    for index, item in enumerate(cast(list[Any], listed)):
        if not (isinstance(item, dict) and isinstance(item.get("urn"), str)):
            raise StateError(f"{source}: deployment.resources[{index}] has no urn")
        entry = cast(dict[str, Any], item)
        if entry.get("delete"):
            continue  # on its way out
        given = cast(dict[str, Any], property_tree(entry.get("inputs") or {}))
        outputs = cast(dict[str, Any], property_tree(entry.get("outputs") or {}))
        inputs.append(_resource(entry, given))
        states.append(_resource(entry, {"id": entry.get("id"), **merged(given, outputs)}))
    return inputs, Stack(states)


def _resource(entry: Mapping[str, Any], tree: Mapping[str, Any]) -> Resource:
    urn = str(entry["urn"])
    return Resource(
        value=tree,
        type=str(entry.get("type") or urn.split("::")[2].rpartition("$")[2]),
        name=urn.rpartition("::")[2],
        urn=urn,
        parent=str(entry.get("parent") or ""),
        dependencies=entry.get("propertyDependencies") or {},
        depends_on=entry.get("dependencies") or [],
    )
