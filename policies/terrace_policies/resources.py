"""Resources as rules read them: property trees in which a value may be unknown.

A rule never sees an unknown value: reading one raises ``UnknownValue`` with the path, and the
evaluation reports the rule as unchecked for that resource.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

UNTIL_THE_UPDATE = "unknown until the update"
ENCRYPTED = "a secret, encrypted in this export (export with --show-secrets to check it)"


# Other names of the same types in pulumi-aws: of aws:lb, and of aws:s3 before version 7.
_ALIASES = re.compile(r"^aws:(?:alb|elbv2|elasticloadbalancingv2|applicationloadbalancing)/")
_V2 = re.compile(r"^aws:s3/(\w+)V2:(\w+)V2$")
# A patch of another kind (Namespace, CustomResource) sets too little to be judged.
_PATCH = re.compile(
    r"^(kubernetes:[\w.]+/\w+:(?:Pod|PodTemplate|Deployment|ReplicaSet|ReplicationController"
    r"|StatefulSet|DaemonSet|Job|CronJob|ConfigMap|Secret|Service|NetworkPolicy|Role|ClusterRole"
    r"|RoleBinding|ClusterRoleBinding))Patch$"
)


def usual_type(token: str) -> str:
    """The type token that rules name, of one that means the same."""
    token = _V2.sub(r"aws:s3/\1:\2", _ALIASES.sub("aws:lb/", token))
    return _PATCH.sub(r"\1", token)


@dataclass(frozen=True)
class Unknown:
    """Stands in a property tree for a value that cannot be read, and says why."""

    reason: str = UNTIL_THE_UPDATE


class UnknownValue(Exception):  # noqa: N818  a signal, caught by the evaluation
    """A rule needed a value that cannot be read yet."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Node:
    """A value in a property tree, with its path from the resource."""

    value: Any
    path: str = ""

    def at(self, path: str) -> "Node":
        """The node at a dotted path below this one; its value is ``None`` if it is absent.

        Raises ``UnknownValue`` if something on the way, or the value itself, is unknown.
        """
        node = self
        for part in path.split("."):
            node = node._child(part)
        return node

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; raises ``UnknownValue`` if any part of it is unknown."""
        node = self.at(path)
        if node.value is None:
            return default
        node.require_known()
        return node.value

    def has(self, path: str) -> bool:
        """Whether a value is given at a dotted path, known or not."""
        parent, _, last = path.rpartition(".")
        value = (self.at(parent) if parent else self).value
        return isinstance(value, Mapping) and cast(Mapping[str, Any], value).get(last) is not None

    def items(self, path: str) -> list["Node"]:
        """The elements of the list at a dotted path; empty if it is absent."""
        node = self.at(path)
        if not isinstance(node.value, list):
            return []
        elements = cast(list[Any], node.value)
        return [Node(value, f"{node.path}[{i}]") for i, value in enumerate(elements)]

    def require_known(self) -> None:
        """Raise ``UnknownValue`` for the first unknown value in this tree."""
        for path, unknown in unknowns(self.value, self.path):
            raise UnknownValue(path, unknown.reason)

    def _child(self, part: str) -> "Node":
        path = f"{self.path}.{part}" if self.path else part
        value: Any = None
        if isinstance(self.value, Mapping):
            value = cast(Mapping[str, Any], self.value).get(part)
        if isinstance(value, Unknown):
            raise UnknownValue(path, value.reason)
        return Node(value, path)


def unknowns(value: Any, path: str = "") -> Iterator[tuple[str, Unknown]]:
    """Paths of all unknown values in a property tree."""
    if isinstance(value, Unknown):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in cast(Mapping[str, Any], value).items():
            yield from unknowns(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            yield from unknowns(item, f"{path}[{index}]")


@dataclass(frozen=True)
class Resource(Node):
    """One resource of a stack. ``value`` holds its inputs, or in stack rules its state."""

    type: str = ""
    name: str = ""
    urn: str = ""
    parent: str = ""
    dependencies: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Property -> URNs of the resources that its value comes from."""
    depends_on: Sequence[str] = ()
    patch: bool = False
    """Whether it changes an object of Kubernetes that is somebody else's (``DeploymentPatch``)."""

    def __post_init__(self) -> None:
        """Take the usual token, so that no rule is dodged by another name of the same type."""
        token = usual_type(self.type)
        object.__setattr__(self, "patch", token != self.type and self.type.endswith("Patch"))
        object.__setattr__(self, "type", token)

    @property
    def stack_name(self) -> str:
        """Name of the stack, from the URN."""
        return self.urn.removeprefix("urn:pulumi:").partition("::")[0]

    @property
    def kind(self) -> str:
        """Last part of the type token, ``Deployment``."""
        return self.type.rpartition(":")[2]


@dataclass(frozen=True)
class Stack:
    """All resources of a stack."""

    resources: Sequence[Resource]
    preview: bool = False

    @cached_property
    def by_urn(self) -> Mapping[str, Resource]:
        """URN -> resource."""
        return {resource.urn: resource for resource in self.resources}

    @cached_property
    def _by_type(self) -> Mapping[str, list[Resource]]:
        found: dict[str, list[Resource]] = {}
        for resource in self.resources:
            found.setdefault(resource.type, []).append(resource)
        return found

    def of(self, *types: str) -> list[Resource]:
        """Resources of these type tokens."""
        return [resource for name in types for resource in self._by_type.get(name, [])]

    def kinds(self, *kinds: str) -> list[Resource]:
        """Kubernetes objects of these kinds, of any version."""
        return [
            resource
            for name, found in self._by_type.items()
            if name.startswith("kubernetes:") and name.rpartition(":")[2] in kinds
            for resource in found
        ]

    def refers(self, source: Resource, path: str, target: Resource) -> bool:
        """Whether the value of ``source`` at ``path`` names ``target``.

        By the dependency that Pulumi recorded, which is known at the first preview, or by the
        target's own id, name or ARN.
        """
        if target.urn in source.dependencies.get(path.split(".", maxsplit=1)[0], ()):
            return True
        try:
            value = source.get(path)
        except UnknownValue:
            return False
        own: list[Any] = []
        for key in ("id", "arn", "name", "bucket"):
            try:
                own.append(target.get(key))
            except UnknownValue:
                continue
        return value is not None and value in own
