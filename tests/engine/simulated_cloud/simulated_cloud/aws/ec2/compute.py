"""Launch templates and network interfaces."""

import base64
import binascii
from collections.abc import Iterable

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, length, matches, one_of
from ...values import Properties, first, known
from ...world import World
from ..model import AwsModel, digest
from .network import SECURITY_GROUP, SUBNET

LAUNCH_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
_NESTED_FAMILIES = ("c8i", "m8i", "r8i", "c8i-flex", "m8i-flex", "r8i-flex")


class LaunchTemplate(AwsModel):
    token = LAUNCH_TEMPLATE
    id_prefix = "lt"
    auto_name = AutoName("name", 128)
    rules = (
        length("name", 3, 128),
        matches("name", r"[a-zA-Z0-9().\-/_]+", "letters, digits and ().-/_"),
        matches("imageId", r"ami-[0-9a-f]{8,17}|resolve:ssm:.+", "an AMI id"),
        one_of("metadataOptions.httpTokens", "required", "optional"),
        one_of("metadataOptions.httpEndpoint", "enabled", "disabled"),
        between("metadataOptions.httpPutResponseHopLimit", 1, 64),
        one_of("cpuOptions.nestedVirtualization", "enabled", "disabled"),
        one_of(
            "blockDeviceMappings[].ebs.volumeType",
            "gp2",
            "gp3",
            "io1",
            "io2",
            "st1",
            "sc1",
            "standard",
        ),
        between("blockDeviceMappings[].ebs.volumeSize", 1, 65536),
        one_of("blockDeviceMappings[].ebs.encrypted", "true", "false", True, False),
        one_of(
            "tagSpecifications[].resourceType",
            "instance",
            "volume",
            "network-interface",
            "spot-instances-request",
        ),
    )
    links = (Link("vpcSecurityGroupIds[]", SECURITY_GROUP, not_found="InvalidGroup.NotFound"),)
    replace_on = frozenset({"name", "namePrefix"})
    unique = (("name",),)
    duplicate_code = "InvalidLaunchTemplateName.AlreadyExistsException"
    unknown_on_update = frozenset({"latestVersion"})

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, text in known(inputs, "userData"):
            try:
                size = len(base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError):
                yield Problem(where, "must be base64")
            else:
                if size > 16384:
                    yield Problem(where, f"has {size} bytes; EC2 takes 16384")
        if first(inputs, "cpuOptions.nestedVirtualization") == "enabled":
            family = str(first(inputs, "instanceType", "c8i.")).split(".")[0]
            if family not in _NESTED_FAMILIES:
                yield Problem(
                    "cpuOptions.nestedVirtualization",
                    f"{family} has no nested virtualization; families that do:"
                    f" {', '.join(_NESTED_FAMILIES)}",
                )

    def created(self, item: Item, world: World) -> None:
        version = int(item.inputs.get("__version", 0)) + 1
        item.inputs["__version"] = version
        item.outputs["latestVersion"] = version
        world.inventory.put(item)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "ec2", f"launch-template/{id}"),
            "defaultVersion": inputs.get("defaultVersion") or 1,
        }


class NetworkInterface(AwsModel):
    """While it exists, its subnet, its groups and so its VPC do not go."""

    token = "aws:ec2/networkInterface:NetworkInterface"
    id_prefix = "eni"
    links = (
        Link("subnetId", SUBNET, holds=True, not_found="InvalidSubnetID.NotFound"),
        Link("securityGroups[]", SECURITY_GROUP, holds=True, not_found="InvalidGroup.NotFound"),
    )
    replace_on = frozenset({"subnetId", "interfaceType"})

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        subnet = world.get(inputs["subnetId"], SUBNET)
        for id in inputs.get("securityGroups") or []:
            group = world.get(id, SECURITY_GROUP)
            if subnet and group and group["vpcId"] != subnet["vpcId"]:
                raise CloudError(
                    "InvalidParameter", f"{id} and {subnet.id} belong to different networks"
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        code = digest(id, length=10)
        return {
            "arn": self.arn_in(world, "ec2", f"network-interface/{id}"),
            "ownerId": world.place.account,
            "macAddress": "02:" + ":".join(code[i : i + 2] for i in range(0, 10, 2)),
        }


MODELS = (LaunchTemplate, NetworkInterface)
