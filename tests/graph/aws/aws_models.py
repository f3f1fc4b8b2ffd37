"""Whether what a program registers is what AWS's APIs take, by the service models of botocore.

They say pattern, length and values of texts, where AWS says them at all. Pulumi's names are those
of the API in another case; ``OPERATIONS`` has the few that are not.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import botocore.session

OPERATIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    "aws:acm/certificate:Certificate": ("acm", "RequestCertificate", {}),
    "aws:cloudwatch/logGroup:LogGroup": ("logs", "CreateLogGroup", {"name": "logGroupName"}),
    "aws:ecr/repository:Repository": ("ecr", "CreateRepository", {"name": "repositoryName"}),
    "aws:eks/accessEntry:AccessEntry": ("eks", "CreateAccessEntry", {}),
    "aws:eks/addon:Addon": ("eks", "CreateAddon", {}),
    "aws:eks/nodeGroup:NodeGroup": ("eks", "CreateNodegroup", {}),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": (
        "eks",
        "CreatePodIdentityAssociation",
        {},
    ),
    "aws:iam/role:Role": ("iam", "CreateRole", {"assumeRolePolicy": "AssumeRolePolicyDocument"}),
    "aws:iam/rolePolicy:RolePolicy": ("iam", "PutRolePolicy", {"policy": "PolicyDocument"}),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": (
        "iam",
        "AttachRolePolicy",
        {"role": "RoleName"},
    ),
    "aws:kms/alias:Alias": ("kms", "CreateAlias", {"name": "AliasName"}),
    "aws:kms/key:Key": ("kms", "CreateKey", {}),
    "aws:lb/listener:Listener": ("elbv2", "CreateListener", {}),
    "aws:lb/loadBalancer:LoadBalancer": (
        "elbv2",
        "CreateLoadBalancer",
        {"loadBalancerType": "Type"},
    ),
    "aws:lb/targetGroup:TargetGroup": ("elbv2", "CreateTargetGroup", {}),
    "aws:rds/cluster:Cluster": ("rds", "CreateDBCluster", {}),
    "aws:wafv2/webAcl:WebAcl": ("wafv2", "CreateWebACL", {}),
}
# Python has no classes of Unicode properties; ours are ASCII.
_CLASSES = {r"\p{L}": "a-zA-Z", r"\p{N}": "0-9", r"\p{Z}": " ", r"\p{Zs}": " "}


@functools.cache
def shape_of(type: str) -> Any:
    """Shape of the request that makes a resource of this type."""
    service, operation, _ = OPERATIONS[type]
    session = botocore.session.get_session()
    return session.get_service_model(service).operation_model(operation).input_shape


def checked(type: str, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Every text of the inputs that the model has a rule for: its path, and what is wrong."""
    names = OPERATIONS[type][2]
    renamed = {names.get(key, key): value for key, value in inputs.items()}
    yield from _checked(renamed, shape_of(type), "")


def _checked(value: Any, shape: Any, path: str) -> Iterator[tuple[str, str | None]]:
    if isinstance(value, Mapping) and shape.type_name == "structure":
        members = {name.lower(): member for name, member in shape.members.items()}
        for key, item in value.items():
            if key.lower() in members:
                yield from _checked(item, members[key.lower()], f"{path}.{key}")
    elif isinstance(value, Mapping) and shape.type_name == "list":  # tags: pairs at AWS
        pairs = [{"Key": key, "Value": item} for key, item in value.items()]
        yield from _checked(pairs, shape, path)
    elif isinstance(value, Mapping) and shape.type_name == "map":
        for key, item in value.items():
            yield from _checked(key, shape.key, f"{path}.{key}")
            yield from _checked(item, shape.value, f"{path}.{key}")
    elif isinstance(value, list) and shape.type_name == "list":
        for number, item in enumerate(value):
            yield from _checked(item, shape.member, f"{path}[{number}]")
    elif isinstance(value, str) and shape.type_name == "string":
        rules = shape.metadata
        if rules.keys() & {"pattern", "min", "max", "enum"}:
            yield path, _wrong(value, rules)


def _wrong(text: str, rules: Mapping[str, Any]) -> str | None:
    if not rules.get("min", 0) <= len(text) <= rules.get("max", len(text)):
        return f"{len(text)} characters, not {rules.get('min', 0)} to {rules.get('max')}"
    if rules.get("enum") and text not in rules["enum"]:
        return f"{text!r} is not one of {rules['enum']}"
    pattern = str(rules.get("pattern", "(?s:.*)"))
    for name, characters in _CLASSES.items():
        pattern = pattern.replace(name, characters)
    return None if re.fullmatch(pattern, text) else f"{text!r} does not match {pattern}"
