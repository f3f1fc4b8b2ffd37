"""ValidatingAdmissionPolicies, evaluated by `cel-expr-python` where it is installed.

Standard CEL only: an expression that uses a function of Kubernetes' own library (or params) is left
out, and so is everything when the library is not there. Binding and policy matching covers API
groups, resources, operations, namespace and object selectors.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from .clusters import Cluster
from .objects import Key, Manifest, group_of, labels_of, selects

_PLURALS = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}
_VARIABLES = ("object", "oldObject", "variables", "request", "namespaceObject")


def denials(manifest: Manifest, old: Manifest | None, key: Key, cluster: Cluster) -> list[str]:
    """What the cluster's policies, bound with `Deny`, say against an object."""
    bindings = list(cluster.objects("ValidatingAdmissionPolicyBinding"))
    if not bindings or importlib.util.find_spec("cel_expr_python") is None:
        return []
    namespace = dict(cluster.get(Key("", "Namespace", "", key.namespace)) or {})
    if key.namespace:
        labels = {**labels_of(namespace), "kubernetes.io/metadata.name": key.namespace}
        namespace["metadata"] = {"name": key.namespace, "labels": labels}
    operation = "CREATE" if old is None else "UPDATE"
    found: list[str] = []
    for policy in cluster.objects("ValidatingAdmissionPolicy"):
        name, spec = str(policy["metadata"]["name"]), policy.get("spec") or {}
        bound = [
            one["spec"]
            for one in bindings
            if one["spec"].get("policyName") == name
            and "Deny" in (one["spec"].get("validationActions") or [])
            and _in_scope(one["spec"].get("matchResources") or {}, manifest, key, namespace)
        ]
        constraints = spec.get("matchConstraints") or {}
        rules = constraints.get("resourceRules") or []
        if (
            bound
            and any(_matches(rule, manifest, operation) for rule in rules)
            and _in_scope(constraints, manifest, key, namespace)
        ):
            data = {
                "object": _plain(manifest),
                "oldObject": _plain(old or {}),
                "request": {"operation": operation, "namespace": key.namespace, "name": key.name},
                "namespaceObject": _plain(namespace),
                "variables": {},
            }
            said = _violations(spec, data)
            found += [f"ValidatingAdmissionPolicy '{name}' denied request: {m}" for m in said]
    return found


def _in_scope(match: Mapping[str, Any], manifest: Manifest, key: Key, namespace: Manifest) -> bool:
    if not selects(match.get("objectSelector") or {}, labels_of(manifest)):
        return False
    return not key.namespace or selects(match.get("namespaceSelector") or {}, labels_of(namespace))


def _matches(rule: Mapping[str, Any], manifest: Manifest, operation: str) -> bool:
    kind = str(manifest.get("kind"))
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return (
        bool({"*", group_of(manifest)} & set(rule.get("apiGroups") or []))
        and bool({"*", plural} & set(rule.get("resources") or []))
        and bool({"*", operation} & set(rule.get("operations") or []))
    )


def _violations(spec: Mapping[str, Any], data: dict[str, Any]) -> Iterator[str]:
    for condition in spec.get("matchConditions") or []:
        if _evaluated(str(condition["expression"]), data) is False:
            return
    for variable in spec.get("variables") or []:
        data["variables"][variable["name"]] = _evaluated(str(variable["expression"]), data)
    for validation in spec.get("validations") or []:
        if _evaluated(str(validation["expression"]), data) is not False:
            continue
        message = validation.get("message") or f"failed expression: {validation['expression']}"
        if expression := validation.get("messageExpression"):
            message = _evaluated(str(expression), data) or message
        yield str(message)


def _evaluated(expression: str, data: Mapping[str, Any]) -> Any:
    """The value of an expression; None when it cannot be evaluated here."""
    program = _compiled(expression)
    if program is None:
        return None
    result = program.eval(data=dict(data))
    value = result.plain_value()
    failed = result.type().name().lower() == "*error*" or isinstance(value, Exception)
    return None if failed else value


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Any:
    environment = _environment()
    try:
        return environment.compile(expression)
    except Exception:
        return None


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel

    return cel.NewEnv(variables=dict.fromkeys(_VARIABLES, cel.Type.DYN))


def _plain(value: Any) -> Any:
    """Without nulls; whole numbers as integers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
