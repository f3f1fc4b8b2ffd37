"""Managed and inline policies."""

from collections.abc import Iterable

from ...inventory import Item
from ...models import AutoName, Link, Problem
from ...rules import length, matches
from ...values import Properties
from ...world import World
from ..model import AwsModel, digest
from .documents import check_document
from .roles import ROLE

POLICY = "aws:iam/policy:Policy"


class Policy(AwsModel):
    token = POLICY
    level = "account"
    auto_name = AutoName("name", 128)
    rules = (
        length("name", 1, 128),
        matches("name", r"[\w+=,.@-]+", "letters, digits and _+=,.@-"),
        matches("path", r"/|/[\x21-\x7f]+/", "a path that begins and ends with /"),
    )
    replace_on = frozenset({"name", "namePrefix", "path", "description"})
    defaults = {"path": "/"}
    duplicate_code = "EntityAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="identity")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(
            world.place.arn(
                "iam", f"policy{inputs.get('path') or '/'}{inputs['name']}", region=False
            )
        )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": id, "policyId": f"ANPA{digest(id, length=17).upper()}", "attachmentCount": 0}

    def blocks_delete(self, item: Item, world: World) -> str | None:
        for other in world.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment"):
            if other["policyArn"] == item.arn:
                return f"DeleteConflict: cannot delete {item.id}, it is attached ({other.id})"
        return None


class RolePolicy(AwsModel):
    token = "aws:iam/rolePolicy:RolePolicy"
    level = "account"
    auto_name = AutoName("name", 128)
    rules = (length("name", 1, 128), matches("name", r"[\w+=,.@-]+", "letters, digits and _+=,.@-"))
    links = (Link("role", ROLE, by=("id", "name"), not_found="NoSuchEntity"),)
    replace_on = frozenset({"name", "namePrefix", "role"})
    duplicate_code = "EntityAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="identity")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['role']}:{inputs['name']}"


MODELS = (Policy, RolePolicy)
