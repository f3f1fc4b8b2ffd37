"""IAM policy documents: grammar here, actions and resources by the linter library `parliament`."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, Literal

from ...models import Problem
from ...values import UNKNOWN, has_unknown
from .linter import findings, in_partition_aws

Kind = Literal["identity", "trust", "resource"]
_SIZE: Final = {"identity": 6144, "trust": 4096, "resource": 20480}
_ELEMENTS: Final = frozenset(
    {
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    }
)
_REFUSED: Final = frozenset(
    {
        "MALFORMED",
        "MALFORMED_JSON",
        "INVALID_ARN",
        "UNKNOWN_ACTION",
        "UNKNOWN_PREFIX",
        "UNKNOWN_PRINCIPAL",
        "UNKNOWN_FEDERATION_SOURCE",
        "UNKNOWN_OPERATOR",
        "MISMATCHED_TYPE_OPERATION_TO_NULL",
        "INVALID_SID",
        "DUPLICATE_SID",
        "EXCEPTION",
    }
)
"""The library's findings that are refused here: mistakes. Its opinions about what is wise are for
policy packs."""
_NEWER_ACTIONS: Final = frozenset(
    {
        "bedrock:CallWithBearerToken",
        "bedrock:CountTokens",
    }
)
"""Actions of AWS that the library's list is too old for."""


_VALUES: Final = {
    "Numeric": r"-?\d+(\.\d+)?",
    "Bool": "true|false",
    "Null": "true|false",
    "IpAddress": r"[0-9a-f.:]+(/\d+)?",
    "NotIpAddress": r"[0-9a-f.:]+(/\d+)?",
    "Date": r"\d{4}-\d\d-\d\d.*|\d+",
    "Arn": r"arn:.*|\*",
}


def as_text(document: Any) -> Any:
    """A document as JSON text: the SDK takes objects too."""
    return (
        json.dumps(document)
        if isinstance(document, dict) and not has_unknown(document)
        else document
    )


def check_document(document: Any, where: str, *, kind: Kind) -> Iterator[Problem]:
    """What AWS would refuse in a policy document. Unknown and missing ones are skipped."""
    if document is None or document is UNKNOWN or has_unknown(document):
        return
    text = as_text(document)
    try:
        parsed = json.loads(text)
    except (TypeError, ValueError) as error:
        yield Problem(where, f"MalformedPolicyDocument: not JSON ({error})")
        return
    found = list(_grammar(parsed, kind))
    if not found:
        found = list(_lint(text, kind))
    yield from (Problem(where, f"MalformedPolicyDocument: {reason}") for reason in found)


def _grammar(document: Any, kind: Kind) -> Iterator[str]:
    if not isinstance(document, dict):
        yield "must be a JSON object"
        return
    size = len(re.sub(r"\s", "", json.dumps(document)))
    if size > _SIZE[kind]:
        yield f"has {size} characters; the limit is {_SIZE[kind]}"
    if document.get("Version") not in ("2012-10-17", "2008-10-17", None):
        yield f"Version {document.get('Version')!r} must be 2012-10-17"
    unknown = document.keys() - {"Version", "Id", "Statement"}
    if unknown:
        yield f"unknown element {sorted(unknown)[0]!r}; valid: Version, Id, Statement"
    statements = document.get("Statement")
    statements = [statements] if isinstance(statements, dict) else statements
    if not isinstance(statements, list) or not statements:
        yield "Statement is required"
        return
    sids = [item.get("Sid") for item in statements if isinstance(item, dict) and item.get("Sid")]
    if len(set(sids)) != len(sids):
        yield "statement ids (Sid) must be unique"
    for index, statement in enumerate(statements):
        yield from (f"Statement[{index}]: {reason}" for reason in _statement(statement, kind))


def _statement(statement: Any, kind: Kind) -> Iterator[str]:
    if not isinstance(statement, dict):
        yield "must be an object"
        return
    unknown = statement.keys() - _ELEMENTS
    if unknown:
        yield f"unknown element {sorted(unknown)[0]!r}; valid: {', '.join(sorted(_ELEMENTS))}"
    if statement.get("Effect") not in ("Allow", "Deny"):
        yield f"Effect {statement.get('Effect')!r} must be Allow or Deny"
    if not ("Action" in statement) ^ ("NotAction" in statement):
        yield "exactly one of Action and NotAction is required"
    has_principal = "Principal" in statement or "NotPrincipal" in statement
    if kind == "identity" and has_principal:
        yield "an identity policy must not have a Principal"
    if kind != "identity" and not has_principal:
        yield "a Principal is required"
    has_resource = "Resource" in statement or "NotResource" in statement
    if kind == "trust" and has_resource:
        yield "a trust policy must not have a Resource"
    if kind == "identity" and not has_resource:
        yield "a Resource is required"
    for action in _listed(statement.get("Action")) + _listed(statement.get("NotAction")):
        if action != "*" and not re.fullmatch(r"[a-z0-9-]+:[A-Za-z0-9*?]+", str(action)):
            yield f"action {action!r} must be like s3:GetObject"
    for resource in _listed(statement.get("Resource")):
        if resource != "*" and not re.fullmatch(
            r"arn:(aws|aws-cn|aws-us-gov|\*):[^:]*:[^:]*:[^:]*:.*", str(resource)
        ):
            yield f"resource {resource!r} must be an ARN or *"
    yield from _conditions(statement.get("Condition"))


def _conditions(conditions: Any) -> Iterator[str]:
    """Values that do not fit their operator. The library knows the types of keys, but some of them
    wrongly."""
    for operator, keys in (conditions or {}).items() if isinstance(conditions, dict) else ():
        base = re.sub(r"^(ForAllValues|ForAnyValue):|IfExists$", "", str(operator))
        pattern = next((text for start, text in _VALUES.items() if base.startswith(start)), None)
        for key, values in keys.items() if isinstance(keys, dict) else ():
            for value in _listed(values):
                if (
                    pattern
                    and "${" not in str(value)
                    and not re.fullmatch(pattern, str(value).lower())
                ):
                    yield f"condition {operator} of {key}: {value!r} is not a value for {base}"


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


@lru_cache(maxsize=512)
def _lint(text: str, kind: Kind) -> tuple[str, ...]:
    """Reasons by parliament. Loaded here, because it takes half a second and many programs need
    none of it."""
    if kind == "trust":
        return tuple(_trust_actions(json.loads(text)))
    reasons: list[str] = []
    for finding in findings(in_partition_aws(text)):  # partitions are checked elsewhere
        newer = any(str(finding.detail).endswith(action) for action in _NEWER_ACTIONS)
        if finding.issue in _REFUSED and not newer:
            reasons.append(f"{finding.issue}: {finding.detail}")
    return tuple(reasons)


_TRUST_ACTIONS: Final = frozenset(
    {
        "sts:AssumeRole",
        "sts:AssumeRoleWithWebIdentity",
        "sts:AssumeRoleWithSAML",
        "sts:TagSession",
        "sts:SetSourceIdentity",
        "sts:SetContext",
        "sts:*",
    }
)


def _trust_actions(document: dict[str, Any]) -> Iterator[str]:
    for statement in _listed(document.get("Statement")):
        for action in _listed(statement.get("Action")):
            if action not in _TRUST_ACTIONS:
                yield (
                    f"a trust policy cannot allow {action!r}; valid:"
                    f" {', '.join(sorted(_TRUST_ACTIONS))}"
                )
        services = statement.get("Principal")
        for service in _listed(services.get("Service") if isinstance(services, dict) else None):
            if not re.fullmatch(r"[a-z0-9.-]+\.amazonaws\.com(\.cn)?", str(service)):
                yield f"invalid principal {service!r}; it must be like ec2.amazonaws.com"
