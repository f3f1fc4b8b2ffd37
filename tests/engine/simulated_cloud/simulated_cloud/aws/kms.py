"""KMS keys and aliases. A deleted key is only scheduled for deletion."""

import json
import uuid
from collections.abc import Iterable

from ..inventory import Item
from ..models import AutoName, CloudError, Link, Problem
from ..rules import between, matches, one_of
from ..values import Properties
from ..world import World
from .iam.documents import check_document
from .model import AwsModel

KEY = "aws:kms/key:Key"


class Key(AwsModel):
    token = KEY
    rules = (
        between("deletionWindowInDays", 7, 30),
        between("rotationPeriodInDays", 90, 2560),
        one_of(
            "keyUsage", "ENCRYPT_DECRYPT", "SIGN_VERIFY", "GENERATE_VERIFY_MAC", "KEY_AGREEMENT"
        ),
    )
    replace_on = frozenset(
        {"keyUsage", "customerMasterKeySpec", "multiRegion", "customKeyStoreId", "xksKeyId"}
    )
    defaults = {
        "isEnabled": True,
        "enableKeyRotation": False,
        "keyUsage": "ENCRYPT_DECRYPT",
        "customerMasterKeySpec": "SYMMETRIC_DEFAULT",
        "multiRegion": False,
    }

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="resource")
        spec = inputs.get("customerMasterKeySpec") or "SYMMETRIC_DEFAULT"
        if (
            inputs.get("enableKeyRotation") is True
            and isinstance(spec, str)
            and spec != "SYMMETRIC_DEFAULT"
        ):
            yield Problem(
                "enableKeyRotation", f"{spec} keys do not rotate; only SYMMETRIC_DEFAULT does"
            )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        policy = str(inputs.get("policy") or "")
        if policy and not inputs.get("bypassPolicyLockoutSafetyCheck") and "kms:" not in policy:
            raise CloudError(
                "MalformedPolicyDocumentException",
                "the new key policy will not allow you to update it in the future",
            )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(uuid.uuid4())

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        root = f"arn:{world.place.partition}:iam::{world.place.account}:root"
        statement = {
            "Effect": "Allow",
            "Principal": {"AWS": root},
            "Action": "kms:*",
            "Resource": "*",
        }
        default = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        return {
            "arn": self.arn_in(world, "kms", f"key/{id}"),
            "keyId": id,
            "policy": inputs.get("policy") or default,
        }

    def deleted(self, item: Item, world: World) -> None:
        world.inventory.put_pending(item)


class Alias(AwsModel):
    token = "aws:kms/alias:Alias"
    auto_name = AutoName("name", 256, prefix="alias/")
    rules = (
        matches(
            "name",
            r"alias/(?!aws/)[a-zA-Z0-9/_-]{1,250}",
            "alias/ and letters, digits, /_-, not alias/aws/",
        ),
    )
    links = (Link("targetKeyId", KEY, by=("id", "arn"), not_found="NotFoundException"),)
    replace_on = frozenset({"name", "namePrefix"})
    duplicate_code = "AlreadyExistsException"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        key = world.get(inputs["targetKeyId"], KEY)
        return {
            "name": id,
            "arn": self.arn_in(world, "kms", id),
            "targetKeyArn": key.arn if key else inputs["targetKeyId"],
        }


def refuse_missing_key(value: object, where: str, world: World) -> None:
    """Raises unless the key (id, ARN or alias) exists and is in this region. Other accounts' keys
    are taken as they are."""
    text = str(value or "")
    if (
        not text
        or text.startswith("alias/aws/")
        or (text.startswith("arn:") and f":{world.place.account}:" not in text)
    ):
        return
    if text.startswith("alias/") or ":alias/" in text:
        found = world.get(
            text.rsplit(":", maxsplit=1)[-1] if ":alias/" in text else text, Alias.token
        )
    else:
        found = world.get(text, KEY)
    if found is None:
        raise CloudError(
            "KMSKeyNotAccessibleFault",
            f"{where}: KMS key {text} does not exist, is in another region, or is pending deletion",
        )


def get_key(arguments: Properties, world: World) -> Properties:
    wanted = str(arguments["keyId"])
    item = world.get(wanted, KEY)
    alias = world.get(wanted.rsplit(":", maxsplit=1)[-1], Alias.token)
    if item is None and alias is not None:
        item = world.get(alias["targetKeyId"], KEY)
    if item is None:
        raise CloudError("NotFoundException", f"key {wanted!r} does not exist")
    return {
        **arguments,
        **item.outputs,
        "id": item.id,
        "awsAccountId": world.place.account,
        "enabled": True,
        "keyState": "Enabled",
        "keyManager": "CUSTOMER",
        "origin": "AWS_KMS",
        "keySpec": "SYMMETRIC_DEFAULT",
        "creationDate": "2026-01-01T00:00:00Z",
    }


MODELS = (Key, Alias)
FUNCTIONS = {"aws:kms/getKey:getKey": get_key}
