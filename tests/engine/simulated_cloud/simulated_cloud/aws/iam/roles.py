"""Roles and instance profiles."""

import json
from collections.abc import Iterable
from typing import Any

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, length, matches
from ...values import Properties, known
from ...world import World
from ..model import ArnOf, AwsModel, digest
from .documents import check_document

ROLE = "aws:iam/role:Role"
_NAME = r"[\w+=,.@-]+"
_NAME_MEANING = "letters, digits and _+=,.@-"
_PATH = r"/|/[\x21-\x7f]+/"


class Role(AwsModel):
    token = ROLE
    level = "account"
    auto_name = AutoName("name", 64)
    rules = (
        length("name", 1, 64),
        matches("name", _NAME, _NAME_MEANING),
        matches("path", _PATH, "a path that begins and ends with /"),
        between("maxSessionDuration", 3600, 43200),
        length("description", 0, 1000),
    )
    arns = (
        ArnOf("permissionsBoundary", "iam", "policy/.+"),
        ArnOf("managedPolicyArns[]", "iam", "policy/.+"),
    )
    replace_on = frozenset({"name", "namePrefix", "path"})
    defaults = {"path": "/", "maxSessionDuration": 3600, "forceDetachPolicies": False}
    duplicate_code = "EntityAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("assumeRolePolicy"), "assumeRolePolicy", kind="trust")
        for where, policy in known(inputs, "inlinePolicies[].policy"):
            yield from check_document(policy, where, kind="identity")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs.get("name") or f"{inputs.get('namePrefix', name)}{digest(name)}")

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        path = inputs.get("path") or "/"
        return {
            "name": id,
            "arn": world.place.arn("iam", f"role{path}{id}", region=False),
            "uniqueId": f"AROA{digest(id, length=17).upper()}",
            "createDate": "2026-01-01T00:00:00Z",
            "managedPolicyArns": inputs.get("managedPolicyArns") or [],
            "inlinePolicies": inputs.get("inlinePolicies") or [],
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        if item["forceDetachPolicies"]:
            return None
        names = {item.id, item.arn}
        for type, what in (
            ("aws:iam/rolePolicyAttachment:RolePolicyAttachment", "must detach all policies first"),
            ("aws:iam/rolePolicy:RolePolicy", "must delete policies first"),
            (
                "aws:iam/instanceProfile:InstanceProfile",
                "must remove roles from instance profile first",
            ),
        ):
            for other in world.all(type):
                if other["role"] in names:
                    return f"DeleteConflict: cannot delete entity {item.id}, {what} ({other.id})"
        return None


class InstanceProfile(AwsModel):
    token = "aws:iam/instanceProfile:InstanceProfile"
    level = "account"
    auto_name = AutoName("name", 128)
    rules = (length("name", 1, 128), matches("name", _NAME, _NAME_MEANING))
    links = (Link("role", ROLE, by=("id", "name", "arn"), not_found="NoSuchEntity"),)
    replace_on = frozenset({"name", "namePrefix", "path"})
    defaults = {"path": "/"}
    duplicate_code = "EntityAlreadyExists"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        path = inputs.get("path") or "/"
        return {
            "arn": world.place.arn("iam", f"instance-profile{path}{id}", region=False),
            "uniqueId": f"AIPA{digest(id, length=17).upper()}",
            "createDate": "2026-01-01T00:00:00Z",
        }


class OpenIdConnectProvider(AwsModel):
    token = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
    level = "account"
    rules = (
        matches("url", r"https://[^\s?#]+", "an https URL without query"),
        length("clientIdLists", 1, 100),
    )
    replace_on = frozenset({"url"})
    duplicate_code = "EntityAlreadyExists"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        host = str(inputs["url"]).removeprefix("https://")
        return str(world.place.arn("iam", f"oidc-provider/{host}", region=False))

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": id,
            "url": str(inputs["url"]).removeprefix("https://"),
            "thumbprintLists": (
                inputs.get("thumbprintLists") or ["9e99a48a9960b14926bb7f3b02e22da2b0ab7280"]
            ),
        }


class ServiceLinkedRole(AwsModel):
    token = "aws:iam/serviceLinkedRole:ServiceLinkedRole"
    level = "account"
    rules = (
        matches(
            "awsServiceName",
            r"[a-z0-9.-]+\.amazonaws\.com(\.cn)?",
            "a service such as spot.amazonaws.com",
        ),
    )
    duplicate_code = "InvalidInput"
    replace_on = frozenset({"awsServiceName", "customSuffix"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        service = str(inputs["awsServiceName"])
        short = "".join(part.capitalize() for part in service.split(".", maxsplit=1)[0].split("-"))
        return str(
            world.place.arn(
                "iam", f"role/aws-service-role/{service}/AWSServiceRoleFor{short}", region=False
            )
        )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": id,
            "name": id.rsplit("/", 1)[1],
            "path": f"/aws-service-role/{inputs['awsServiceName']}/",
        }


def refuse_missing_role(arn: str, where: str, world: World) -> None:
    """Raises unless the role exists; roles of other accounts cannot be seen and are taken as they
    are."""
    if f":{world.place.account}:" in arn and world.get(arn, ROLE) is None:
        raise CloudError("InvalidParameterException", f"{where}: role {arn} does not exist")


def refuse_wrong_trust(
    role_arn: str, service: str, where: str, world: World, actions: tuple[str, ...] = ()
) -> None:
    """Raises unless the role trusts `service` (and allows `actions` to it)."""
    role = world.get(role_arn, ROLE)
    if role is None:
        return
    document: Any = role["assumeRolePolicy"]
    document = json.loads(document) if isinstance(document, str) else document
    allowed: set[str] = set()
    for statement in document.get("Statement", []):
        principals = statement.get("Principal", {})
        services = principals.get("Service", []) if isinstance(principals, dict) else []
        listed = statement.get("Action", [])
        if service in ([services] if isinstance(services, str) else services):
            allowed |= set([listed] if isinstance(listed, str) else listed)
    missing = [
        action
        for action in ("sts:AssumeRole", *actions)
        if action not in allowed and "sts:*" not in allowed
    ]
    if missing:
        raise CloudError(
            "InvalidParameterException",
            f"{where}: the trust policy of {role.id} does not allow {service} {', '.join(missing)}",
        )


MODELS = (Role, InstanceProfile, OpenIdConnectProvider, ServiceLinkedRole)
