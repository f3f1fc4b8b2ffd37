"""IAM documents: where resources carry them, and their statements in one shape."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from terrace_common.bedrock import GEOGRAPHIES
from terrace_policies.resources import Node, Resource

POLICY = "aws:iam/policy:Policy"
ROLE = "aws:iam/role:Role"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
USER_ATTACHMENT = "aws:iam/userPolicyAttachment:UserPolicyAttachment"
GROUP_ATTACHMENT = "aws:iam/groupPolicyAttachment:GroupPolicyAttachment"
POLICY_ATTACHMENT = "aws:iam/policyAttachment:PolicyAttachment"
EXCLUSIVE = "aws:iam/rolePolicyAttachmentsExclusive:RolePolicyAttachmentsExclusive"
CARRIERS = (POLICY, ROLE, ROLE_POLICY, "aws:iam/userPolicy:UserPolicy",
            "aws:iam/groupPolicy:GroupPolicy")  # fmt: skip

_BEDROCK = re.compile(
    r"^arn:[^:]*:bedrock:(?P<region>[^:]*):[^:]*:"
    r"(?P<kind>foundation-model|inference-profile|application-inference-profile"
    r"|custom-model|provisioned-model|imported-model)/(?P<model>.+)$"
)
# A guardrail, or the profile that spreads its work over regions.
_GUARDRAIL = re.compile(r"^arn:[^:]*:bedrock:[^:]*:[^:]*:guardrail(-profile)?/.+$")
# First part of a cross-region profile: us.anthropic..., apac.amazon..., global.anthropic...
_PREFIX = re.compile(rf"^({'|'.join(sorted(GEOGRAPHIES, reverse=True))})\.(?=[a-z0-9-]+\.)")


@dataclass(frozen=True)
class Statement:
    """One statement of a document; lists always, actions in lower case."""

    path: str
    allow: bool
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    inverted: bool
    """Whether it names what it does *not* mean (``NotAction``, ``NotResource``)."""

    def touches(self, service: str) -> bool:
        """Whether it allows something of a service."""
        return self.allow and any(
            fnmatchcase(service, action.partition(":")[0]) for action in self.actions
        )


@dataclass(frozen=True)
class ModelArn:
    """A Bedrock model or profile that a statement names."""

    region: str
    kind: str
    model: str

    @property
    def model_id(self) -> str:
        """The model's id without the geography of a cross-region profile."""
        return without_geography(self.model)


def is_wide(action: str) -> bool:
    """Whether an action (lower case) is all of a service or of several: ``s3:*``, ``s3:?*``,
    ``bedrock:????``, ``*:get``."""
    service, colon, name = action.partition(":")
    return has_wildcard(service) or (bool(colon) and not name.strip("*?"))


def has_wildcard(text: str) -> bool:
    """Whether IAM reads more than one name from it."""
    return "*" in text or "?" in text


def is_everyone(statement: dict[str, Any]) -> bool:
    """Whether a statement of a trust or resource policy allows anyone, without a condition."""
    if statement.get("Effect") != "Allow" or statement.get("Condition"):
        return False
    if "NotPrincipal" in statement:
        return True
    principal = statement.get("Principal")
    kinds = cast(dict[str, Any], principal).values() if isinstance(principal, dict) else [principal]
    return any("*" in _texts(named) for named in kinds)


def raw_statements(value: Any) -> list[Any]:
    """The statements of a policy as they are written, JSON text or mapping; whatever they are."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    if not isinstance(value, dict):
        return []
    given: Any = cast(dict[str, Any], value).get("Statement") or []
    return cast(list[Any], given if isinstance(given, list) else [given])


def without_geography(model: str) -> str:
    """``us.anthropic.x`` and ``anthropic.x`` are one model."""
    return _PREFIX.sub("", model)


def model_arn(text: str) -> ModelArn | None:
    """The parts of a Bedrock ARN, or ``None`` if it is none of a model."""
    found = _BEDROCK.match(text)
    return ModelArn(found["region"], found["kind"], found["model"]) if found else None


def is_one_guardrail(text: str) -> bool:
    """Whether an ARN is that of exactly one guardrail, or of one guardrail profile."""
    return _GUARDRAIL.match(text) is not None and not has_wildcard(text)


def documents(resource: Resource) -> Iterator[Node]:
    """The permission documents that a resource carries (not its trust policy)."""
    if resource.type == ROLE:
        for inline in resource.items("inlinePolicies"):
            yield Node(inline.get("policy"), f"{inline.path}.policy")
    else:
        yield Node(resource.get("policy"), "policy")


def statements(document: Node) -> list[Statement]:
    """The statements of a document given as JSON text or as a mapping; none if it is neither."""
    return [
        _statement(cast(dict[str, Any], item), f"{document.path}.Statement[{index}]")
        for index, item in enumerate(raw_statements(document.value))
        if isinstance(item, dict)
    ]


def _statement(item: dict[str, Any], path: str) -> Statement:
    return Statement(
        path=path,
        allow=item.get("Effect") == "Allow",
        actions=tuple(action.lower() for action in _texts(item.get("Action"))),
        resources=_texts(item.get("Resource")),
        inverted="NotAction" in item or "NotResource" in item,
    )


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    listed = cast(list[Any], value if isinstance(value, list) else [value])
    return tuple(str(item) for item in listed)
