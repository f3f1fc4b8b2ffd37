"""Secrets Manager. A deleted secret keeps its name until its recovery window ends."""

from collections.abc import Iterable
from typing import Final

from ..inventory import Item
from ..models import AutoName, CloudError, Link, Problem
from ..rules import each, length, matches, only_one
from ..values import Properties
from ..world import World
from .iam.documents import check_document
from .kms import refuse_missing_key
from .model import ArnOf, AwsModel, digest

SECRET: Final = "aws:secretsmanager/secret:Secret"


class Secret(AwsModel):
    token = SECRET
    auto_name = AutoName("name", 512)
    rules = (
        length("name", 1, 512),
        matches("name", r"[\w/+=.@-]+", "letters, digits and /_+=.@-"),
        each(
            "recoveryWindowInDays",
            lambda days: None if days == 0 or 7 <= days <= 30 else f"{days} must be 0 or 7 to 30",
        ),
    )
    arns = (ArnOf("kmsKeyId", "kms", "key/.+", or_name=True),)
    replace_on = frozenset({"name", "namePrefix"})
    defaults = {"recoveryWindowInDays": 30, "forceOverwriteReplicaSecret": False}
    unique = (("name",),)
    duplicate_code = "ResourceExistsException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="resource")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return self.arn_in(
            world,
            "secretsmanager",
            f"secret:{inputs['name']}-{digest(world.place.account, inputs['name'], length=6)}",
        )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_missing_key(inputs.get("kmsKeyId"), "kmsKeyId", world)
        for waiting in world.inventory.pending(SECRET, world.place.scope("region")):
            if existing is None and waiting["name"] == inputs["name"]:
                raise CloudError(
                    "InvalidRequestException",
                    f"name: a secret {inputs['name']!r} is already scheduled for deletion",
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": id}

    def deleted(self, item: Item, world: World) -> None:
        if item["recoveryWindowInDays"] != 0:
            world.inventory.put_pending(item)
        for version in world.find(SecretVersion.token, secretId=item.id):
            world.inventory.remove(version)


class SecretVersion(AwsModel):
    token = "aws:secretsmanager/secretVersion:SecretVersion"
    rules = (
        only_one("secretString", "secretBinary", "secretStringWo"),
        length("secretString", 1, 65536),
    )
    links = (
        Link("secretId", SECRET, by=("id", "arn", "name"), not_found="ResourceNotFoundException"),
    )
    replace_on = frozenset({"secretId", "secretString", "secretBinary"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        version = digest(name, str(inputs.get("secretString")), length=26)
        return f"{inputs['secretId']}|terraform-{version}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        secret = world.get(inputs["secretId"], SECRET)
        arn = secret.id if secret else inputs["secretId"]
        return {
            "arn": arn,
            "secretArn": arn,
            "versionId": id.rsplit("|", 1)[1],
            "versionStages": inputs.get("versionStages") or ["AWSCURRENT"],
        }


def get_secret(arguments: Properties, world: World) -> Properties:
    for item in world.all(SECRET):
        if arguments.get("arn") == item.id or arguments.get("name") == item["name"]:
            return {
                **arguments,
                "id": item.id,
                "arn": item.id,
                "name": item["name"],
                "kmsKeyId": item["kmsKeyId"] or "",
                "description": item["description"] or "",
                "policy": item["policy"] or "",
                "tags": item["tags"] or {},
                "createdDate": "2026-01-01T00:00:00Z",
                "lastChangedDate": "2026-01-01T00:00:00Z",
                "region": world.place.region,
            }
    raise CloudError(
        "ResourceNotFoundException",
        f"couldn't find secret {arguments.get('arn') or arguments.get('name')}",
    )


MODELS = (Secret, SecretVersion)
FUNCTIONS = {"aws:secretsmanager/getSecret:getSecret": get_secret}
