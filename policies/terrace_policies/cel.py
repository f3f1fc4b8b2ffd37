"""Kubernetes rules in CEL: read from ``rules/kubernetes*.yaml``, compiled once, run on inputs.

An unknown value counts for a rule if the rule's text names the field it stands in: CEL reaches a
field by its name only, so nothing that matters is missed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

import yaml

from terrace_policies.model import (
    Finding,
    Parameter,
    Parameters,
    Reference,
    Rule,
    Says,
    Severity,
    Unchecked,
)
from terrace_policies.resources import Resource, Unknown

FOLDER = Path(__file__).parent / "rules"
FILES = ("kubernetes.yaml", "kubernetes-objects.yaml")  # variables are in the first
POD_KINDS = ("Pod", "PodTemplate", "Deployment", "ReplicaSet", "ReplicationController",
             "StatefulSet", "DaemonSet", "Job", "CronJob")  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    "pods": POD_KINDS,
    "config-maps": ("ConfigMap",),
    "secrets": ("Secret",),
    "services": ("Service",),
    "network-policies": ("NetworkPolicy",),
    "roles": ("Role", "ClusterRole"),
    "bindings": ("RoleBinding", "ClusterRoleBinding"),
    "namespaces": ("Namespace",),
    "namespaced": (*POD_KINDS, "ConfigMap", "Service", "Secret", "ServiceAccount"),
    "runtime-classes": ("RuntimeClass",),
}
_PARAMETER_KINDS = {"list": list, "int": int, "str": str, "bool": bool}
_PLACEHOLDER = "unknown"
_ENGINE = Lock()  # evaluation is quick, and nothing says that the library may be entered twice

Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class CelRule:
    """A rule's CEL beside its data."""

    rule: Rule
    about: str
    offenders: str
    place: str
    """Path of the offender's property, with ``{pod}`` and ``{offender}`` in it."""
    message: str
    maps: tuple[str, ...]
    whole: bool
    """Whether it asks for what a patch may leave to the object that it changes."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the shared variables that it uses, in the order of their definition."""
        return tuple(shared_variables()) if self.about == "pods" else ()

    @cached_property
    def _text(self) -> str:
        shared = shared_variables()
        return " ".join([self.offenders, *(shared[name] for name in self.variables)])

    def depends_on(self, path: Path_) -> bool:
        """Whether the value at ``path`` of the object may change what the rule says."""
        names = [part for part in path if isinstance(part, str)]
        below_map = any(name in self.maps for name in names[:-1])
        return below_map or not names or self._names(names[-1])

    def _names(self, field: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(field)}(?!\w)", self._text) is not None


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    first, *others = (
        cast(dict[str, Any], yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")))
        for name in FILES
    )
    return first | {"rules": [*first["rules"], *(r for other in others for r in other["rules"])]}


def shared_variables() -> dict[str, str]:
    """Name -> CEL of the variables that rules on pods may use."""
    return dict(_document()["variables"])


@lru_cache(maxsize=1)
def cel_rules() -> tuple[CelRule, ...]:
    """All rules written in CEL."""
    return tuple(_read(item) for item in _document()["rules"])


def _read(item: dict[str, Any]) -> CelRule:
    identity = str(item["id"])
    return CelRule(
        rule=Rule(
            id=identity,
            description=item["description"],
            why=item["why"],
            remediation=item["remediation"],
            severity=Severity(item["severity"]),
            references=tuple(Reference(f, str(r)) for f, r in item["references"]),
            types=tuple(f"kubernetes:*:{kind}" for kind in KINDS[item["about"]]),
            resource=lambda resource, given: _check(identity, resource, given),
            admission=item["admission"],
            parameters={
                name: Parameter(
                    _PARAMETER_KINDS[p["kind"]],
                    p["default"],
                    p["meaning"],
                    p.get("weaker", ""),
                    least=p.get("least"),
                    most=p.get("most"),
                    pattern=p.get("pattern", ""),
                )
                for name, p in item.get("parameters", {}).items()
            },
        ),
        about=item["about"],
        offenders=item["offenders"],
        place=item["property"],
        message=item["message"],
        maps=tuple(item.get("maps", ())),
        whole=bool(item.get("whole", False)),
    )


@lru_cache(maxsize=1)
def _by_id() -> dict[str, CelRule]:
    return {cel.rule.id: cel for cel in cel_rules()}


def parameter_variables(given: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    """Parameters as CEL variables: ``allowed-node-ports`` is ``variables.allowed_node_ports``."""
    return {name.replace("-", "_"): given[name] for name in rule.parameters}


@lru_cache(maxsize=256)
def compiled(expression: str) -> Any:
    """An expression, compiled; raises ``ValueError`` if it is not CEL."""
    try:
        return _environment().compile(expression)
    except Exception as error:
        raise ValueError(f"not CEL: {error}") from error


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel  # noqa: PLC0415  a stack without Kubernetes does without

    return cel.NewEnv(variables={"object": cel.Type.DYN, "variables": cel.Type.DYN})


def _check(identity: str, resource: Resource, given: Parameters) -> Iterator[Says]:
    cel = _by_id()[identity]
    obj, unknown = _prepared(resource)
    if resource.patch and (cel.whole or not _touches(obj, cel.about, resource.kind)):
        return
    pod = _pod_path(resource.kind)
    unclear: set[str] = set()
    for path, reason in unknown:
        if not cel.depends_on(path):
            continue
        container = _container(obj, path) if "{offender}" in cel.place else None
        yield Unchecked(_dotted(path), reason)
        if container is None or cel.about != "pods":
            return
        unclear.add(container)
    try:
        offenders = evaluate(cel, obj, given)
    except RuntimeError as error:
        yield Finding(pod, f"cannot be judged: {error}")
        return
    for offender in offenders:
        if offender not in unclear:
            yield Finding(cel.place.format(pod=pod, offender=offender), cel.message)


def evaluate(cel: CelRule, obj: Mapping[str, Any], given: Parameters) -> list[str]:
    """Names of the offenders in a Kubernetes object; ``RuntimeError`` if the rule fails on it."""
    variables: dict[str, Any] = parameter_variables(given, cel.rule)
    with _ENGINE:
        for name in cel.variables:
            variables[name] = _value(shared_variables()[name], obj, variables)
        return [str(offender) for offender in _value(cel.offenders, obj, variables)]


def _value(expression: str, obj: Mapping[str, Any], variables: dict[str, Any]) -> Any:
    from cel_expr_python import cel  # noqa: PLC0415  it is loaded: something was compiled

    result = compiled(expression).eval(data={"object": obj, "variables": variables})
    if result.type() == cel.Type.ERROR:
        raise RuntimeError(str(result.plain_value()))
    return result.plain_value()


_last: list[tuple[Any, Any, Any]] = []


def _prepared(resource: Resource) -> tuple[dict[str, Any], list[tuple[Path_, str]]]:
    """The object as CEL takes it, and its unknown values. The last one is kept: all rules on a
    resource run one after the other."""
    for tree, obj, unknown in _last:
        if tree is resource.value:
            return obj, unknown
    unknown: list[tuple[Path_, str]] = []
    obj = cast(dict[str, Any], _clean(resource.value, (), unknown))
    # A DeploymentPatch is judged as the Deployment that it makes of what it sets.
    obj["kind"] = resource.kind
    _last[:] = [(resource.value, obj, unknown)]
    return obj, unknown


def _clean(value: Any, path: Path_, unknown: list[tuple[Path_, str]]) -> Any:
    """Without nulls, whole numbers as integers, unknown values as a placeholder."""
    if isinstance(value, Unknown):
        unknown.append((path, value.reason))
        return _PLACEHOLDER
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {k: _clean(v, (*path, k), unknown) for k, v in items if v is not None}
    if isinstance(value, list):
        return [_clean(v, (*path, i), unknown) for i, v in enumerate(cast(list[Any], value))]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def _pod_path(kind: str) -> str:
    if kind in {"Pod", "PodTemplate"}:
        return "spec" if kind == "Pod" else "template.spec"
    return "spec.jobTemplate.spec.template.spec" if kind == "CronJob" else "spec.template.spec"


def _touches(obj: Mapping[str, Any], about: str, kind: str) -> bool:
    """Whether a patch sets anything that rules read: of pods, their spec."""
    value: Any = obj
    for part in _pod_path(kind).split(".") if about == "pods" else ():
        value = cast(dict[str, Any], value).get(part) if isinstance(value, dict) else None
    return value is not None


def _container(obj: Mapping[str, Any], path: Path_) -> str | None:
    """Name of the container that ``path`` lies in; ``None`` if in none, or in its name."""
    value: Any = obj
    for depth, part in enumerate(path):
        value = value[part]
        if depth and path[depth - 1] in {"containers", "initContainers", "ephemeralContainers"}:
            inside = isinstance(value, dict) and path[-1] != "name"
            return str(cast(dict[str, Any], value).get("name")) if inside else None
    return None


def _dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
