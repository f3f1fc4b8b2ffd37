"""Puts items into the AWS inventory that no Pulumi program made, e.g. a VPC that exists already."""

from typing import Any

from .aws.catalogue import MODELS
from .aws.model import OtherModel
from .aws.place import AwsPlace
from .inventory import Inventory, Item
from .lifecycle import Lifecycle
from .sdk import Sdk
from .world import World


def add_item(
    inventory: Inventory,
    type: str,
    id: str,
    inputs: dict[str, Any],
    *,
    account: str = "123456789012",
    region: str = "us-east-1",
) -> Item:
    """Adds an AWS item with this id. `inputs` use the provider's names (`cidrBlock`).

    Raises `ValueError` when the cloud refuses it: unknown type, wrong properties, or something it
    needs is missing.
    """
    sdk = Sdk("aws")
    world = World(inventory, AwsPlace(account, region))
    lifecycle = Lifecycle(inventory, sdk, lambda token: MODELS.get(token) or OtherModel(token))
    schema = sdk.schema(type)
    regional = {"region": region} if schema is not None and "region" in schema.inputs else {}
    return lifecycle.adopt(type, id, {**regional, **inputs}, world)
