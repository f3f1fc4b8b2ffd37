"""How a resource type behaves: the class that every simulated type is written with.

A type needs no model: whatever the SDK knows is simulated with its names, types and made-up
outputs. A model adds what the real service checks, computes and refuses.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from .inventory import Item
from .schema_check import Problem
from .values import UNKNOWN, Properties, known
from .world import World

__all__ = ["AutoName", "CloudError", "Link", "Problem", "ResourceModel", "Rule"]


class CloudError(Exception):
    """The service's refusal, worded as `operation error EC2: api error <code>: <message>`."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"api error {code}: {message}")


class PartialError(Exception):
    """The item was made, but the wait for it failed."""

    def __init__(self, item: Item, reason: str) -> None:
        self.item = item
        self.reason = reason
        super().__init__(reason)


class Rule(Protocol):
    """A check of the inputs alone; also run in previews, so it skips what is unknown."""

    def __call__(self, inputs: Properties) -> Iterator[Problem]: ...


@dataclass(frozen=True)
class AutoName:
    """Pulumi's auto-naming: an unset `property` gets `<logical name><separator><7 hex>`."""

    property: str
    max_length: int = 255
    lower: bool = False
    separator: str = "-"
    prefix: str = ""


@dataclass(frozen=True)
class Link:
    """A reference to another item.

    `path` holds ids, ARNs or names of items of `type`. With `holds`, the target cannot be deleted
    while this item exists (the service answers DependencyViolation or its like).
    """

    path: str
    type: str
    holds: bool = False
    by: tuple[str, ...] = ("id", "arn")
    not_found: str = "InvalidParameterValue"


class ResourceModel:
    """Behaviour of one type. Subclasses set the class variables and override what they need."""

    token: ClassVar[str] = ""
    level: ClassVar[str] = "region"
    """Where the id is unique: a name that the provider's `Place.scope` knows."""
    id_prefix: ClassVar[str] = ""
    auto_name: ClassVar[AutoName | None] = None
    rules: ClassVar[Sequence[Rule]] = ()
    links: ClassVar[Sequence[Link]] = ()
    replace_on: ClassVar[frozenset[str]] = frozenset()
    """Input paths (camelCase, `a.b` for nested) whose change makes a new one."""
    defaults: ClassVar[dict[str, Any]] = {}
    """What the service fills in, by output name."""
    unique: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Groups of output properties that no two items in one scope may share; ignored where the last
    is not set."""
    duplicate_code: ClassVar[str] = "ResourceAlreadyExistsException"
    computed: ClassVar[frozenset[str]] = frozenset()
    """Properties that the service adds inside of an input, such as `vpcConfig.vpcId`."""
    echoes: ClassVar[dict[str, str]] = {}
    """Outputs that repeat an input under another name, where the type has both."""
    unknown_on_update: ClassVar[frozenset[str]] = frozenset()
    """Computed outputs that an update changes."""
    delete_before_replace: ClassVar[bool] = False

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        """What is wrong with the inputs alone, as at plan time. Nothing here depends on what
        exists."""
        del world
        for rule in self.rules:
            yield from rule(inputs)

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        """Raises `CloudError` when the service would not accept this at create (`existing` None) or
        update."""

    def references(self, inputs: Properties) -> Iterator[tuple[str, str]]:
        """`(property, id or ARN or name)` of everything the inputs point at."""
        for link in self.links:
            yield from (
                (where, value)
                for where, value in known(inputs, link.path)
                if isinstance(value, str)
            )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        """The id of a new one. `name` is the resource's name in the program."""
        del inputs, name, world
        return f"{self.id_prefix or 'sim'}-{secrets.token_hex(9)[:17]}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        """The computed outputs. The same id and inputs always give the same; inputs need not be
        repeated."""
        del inputs, id, world
        return {}

    def blocks_delete(self, item: Item, world: World) -> str | None:
        """Why `item` cannot be deleted now, or None."""
        del item, world
        return None

    def created(self, item: Item, world: World) -> None:
        """Side effects after a create, in the same transaction."""

    def adopted(self, item: Item, world: World) -> None:
        """Side effects when it was put there as something that exists already (`add`)."""

    def deleted(self, item: Item, world: World) -> None:
        """Side effects after a delete, in the same transaction."""


PLAIN: Final = ResourceModel()


def changed_paths(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Paths that differ between two sets of inputs; an unknown new value counts as different."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            plain = re.fullmatch(r"[A-Za-z_]\w*", str(key))
            step = (f".{key}" if where else str(key)) if plain else f'["{key}"]'
            yield from changed_paths(old.get(key), new.get(key), where + step)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from changed_paths(before, after, f"{where}[{index}]")
    elif new is UNKNOWN or old != new:
        yield where


def touches(path: str, keys: frozenset[str]) -> bool:
    """Whether a changed path is one of `keys`, or lies below or above one."""
    plain = re.sub(r"\[[^\]]*\]", "", path)
    return any(
        plain == key or plain.startswith(f"{key}.") or key.startswith(f"{plain}.") for key in keys
    )
