"""Subnet groups and parameter groups."""

from collections.abc import Iterable
from typing import Final

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import length, matches, one_of
from ...values import Properties, known
from ...world import World
from ..ec2.network import SUBNET
from ..model import AwsModel

SUBNET_GROUP: Final = "aws:rds/subnetGroup:SubnetGroup"
CLUSTER_PARAMETER_GROUP: Final = "aws:rds/clusterParameterGroup:ClusterParameterGroup"
_NAME = matches(
    "name",
    r"(?!default$)[a-z0-9][a-z0-9._ -]*",
    "lower-case letters, digits and ._-, not `default`",
)


class SubnetGroup(AwsModel):
    token = SUBNET_GROUP
    auto_name = AutoName("name", 255, lower=True)
    rules = (length("name", 1, 255), _NAME)
    # AWS itself holds a subnet only while an instance of the group has an interface in it.
    links = (Link("subnetIds[]", SUBNET, holds=True, not_found="InvalidSubnet"),)
    replace_on = frozenset({"name", "namePrefix"})
    defaults = {"description": "Managed by Pulumi"}
    duplicate_code = "DBSubnetGroupAlreadyExists"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        subnets = [item for id in inputs["subnetIds"] if (item := world.get(id, SUBNET))]
        if len({subnet["vpcId"] for subnet in subnets}) > 1:
            raise CloudError("InvalidSubnet", "subnetIds: the subnets must all be in one VPC")
        zones = {subnet["availabilityZone"] for subnet in subnets}
        if len(zones) < 2:
            raise CloudError(
                "DBSubnetGroupDoesNotCoverEnoughAZs",
                f"subnetIds: at least two zones are needed, not {sorted(zones)}",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        subnet = world.get(inputs["subnetIds"][0], SUBNET)
        return {
            "arn": self.arn_in(world, "rds", f"subgrp:{id}"),
            "vpcId": subnet["vpcId"] if subnet else "",
            "supportedNetworkTypes": ["IPV4"],
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        for other in world.find("aws:rds/cluster:Cluster", dbSubnetGroupName=item.id):
            return f"InvalidDBSubnetGroupStateFault: {item.id} is used by {other.id}"
        return None


class _ParameterGroup(AwsModel):
    auto_name = AutoName("name", 255, lower=True)
    rules = (
        length("name", 1, 255),
        matches(
            "name",
            r"[a-z](?!.*--)[a-z0-9.-]*[a-z0-9]",
            "lower-case letters, digits, . and -, no double or last hyphen",
        ),
        one_of("parameters[].applyMethod", "immediate", "pending-reboot"),
    )
    replace_on = frozenset({"name", "namePrefix", "family", "description"})
    defaults = {"description": "Managed by Pulumi"}
    duplicate_code = "DBParameterGroupAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        seen: set[str] = set()
        for where, name in known(inputs, "parameters[].name"):
            if name in seen:
                yield Problem(where, f"{name!r} is given twice")
            seen.add(str(name))

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])


class ClusterParameterGroup(_ParameterGroup):
    token = CLUSTER_PARAMETER_GROUP
    rules = (
        *_ParameterGroup.rules,
        matches(
            "family",
            r"aurora-(postgresql1[3-9]|mysql8\.\d)|postgres1[3-9]|mysql8\.\d",
            "a family such as aurora-postgresql16",
        ),
    )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, "rds", f"cluster-pg:{id}")}

    def blocks_delete(self, item: Item, world: World) -> str | None:
        for other in world.find("aws:rds/cluster:Cluster", dbClusterParameterGroupName=item.id):
            return f"InvalidDBParameterGroupState: {item.id} is used by {other.id}"
        return None


class ParameterGroup(_ParameterGroup):
    token = "aws:rds/parameterGroup:ParameterGroup"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, "rds", f"pg:{id}")}


MODELS = (SubnetGroup, ClusterParameterGroup, ParameterGroup)
