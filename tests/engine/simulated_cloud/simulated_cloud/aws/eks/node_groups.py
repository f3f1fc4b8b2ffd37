"""Managed node groups and Fargate profiles."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, length, matches, one_of
from ...values import Properties, first, has_unknown
from ...world import World
from ..ec2.compute import LAUNCH_TEMPLATE
from ..ec2.network import SUBNET
from ..iam.roles import refuse_missing_role, refuse_wrong_trust
from ..model import ArnOf, AwsModel, digest
from .cluster import ACCESS_ENTRY, refuse_missing_cluster

NODE_GROUP: Final = "aws:eks/nodeGroup:NodeGroup"
ADDON: Final = "aws:eks/addon:Addon"
AMI_TYPES: Final = (
    "AL2023_x86_64_STANDARD",
    "AL2023_ARM_64_STANDARD",
    "AL2023_x86_64_NEURON",
    "AL2023_x86_64_NVIDIA",
    "AL2023_ARM_64_NVIDIA",
    "BOTTLEROCKET_ARM_64",
    "BOTTLEROCKET_x86_64",
    "BOTTLEROCKET_ARM_64_FIPS",
    "BOTTLEROCKET_x86_64_FIPS",
    "BOTTLEROCKET_ARM_64_NVIDIA",
    "BOTTLEROCKET_x86_64_NVIDIA",
    "AL2_x86_64",
    "AL2_x86_64_GPU",
    "AL2_ARM_64",
    "WINDOWS_CORE_2019_x86_64",
    "WINDOWS_FULL_2019_x86_64",
    "WINDOWS_CORE_2022_x86_64",
    "WINDOWS_FULL_2022_x86_64",
    "CUSTOM",
)


class NodeGroup(AwsModel):
    token = NODE_GROUP
    auto_name = AutoName("nodeGroupName", 63)
    rules = (
        length("nodeGroupName", 1, 63),
        matches(
            "nodeGroupName",
            r"[0-9A-Za-z][\w-]*",
            "letters, digits, - and _, starting with a letter or digit",
        ),
        one_of("amiType", *AMI_TYPES),
        one_of("capacityType", "ON_DEMAND", "SPOT", "CAPACITY_BLOCK"),
        matches(
            "instanceTypes[]", r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "an instance type such as m7i.large"
        ),
        one_of("taints[].effect", "NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"),
        length("taints", 0, 50),
        between("diskSize", 1, 16384),
        between("scalingConfig.minSize", 0, 450),
        between("scalingConfig.maxSize", 1, 450),
        between("updateConfig.maxUnavailable", 1, 100),
        between("updateConfig.maxUnavailablePercentage", 1, 100),
        one_of("updateConfig.updateStrategy", "DEFAULT", "MINIMAL"),
        length("subnetIds", 1, 16),
    )
    arns = (ArnOf("nodeRoleArn", "iam", "role/.+"),)
    links = (
        Link("subnetIds[]", SUBNET, holds=True),
        Link(
            "launchTemplate.id", LAUNCH_TEMPLATE, holds=False, not_found="InvalidRequestException"
        ),
    )
    replace_on = frozenset(
        {
            "clusterName",
            "nodeGroupName",
            "nodeGroupNamePrefix",
            "nodeRoleArn",
            "subnetIds",
            "amiType",
            "capacityType",
            "diskSize",
            "instanceTypes",
            "launchTemplate.id",
            "launchTemplate.name",
            "remoteAccess",
        }
    )
    duplicate_code = "ResourceInUseException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from _check_sizes(inputs.get("scalingConfig"))
        update = inputs.get("updateConfig")
        if (
            isinstance(update, dict)
            and update.get("maxUnavailable")
            and update.get("maxUnavailablePercentage")
        ):
            yield Problem(
                "updateConfig.maxUnavailablePercentage",
                "conflicts with maxUnavailable: give only one",
            )
        if inputs.get("launchTemplate") is not None:
            for name in ("diskSize", "remoteAccess"):
                if inputs.get(name) is not None:
                    yield Problem(
                        name, "is not allowed with a launch template; set it in the template"
                    )
        release, version = inputs.get("releaseVersion"), inputs.get("version")
        if isinstance(release, str):
            found = re.fullmatch(r"(\d+\.\d+)\.\d+-(\d{8}|[0-9a-f]{8})", release)
            if found is None:
                yield Problem("releaseVersion", f"{release!r} must be like 1.35.2-20260923")
            elif isinstance(version, str) and found[1] != version:
                yield Problem(
                    "releaseVersion",
                    f"{release!r} is for Kubernetes {found[1]}, version is {version}",
                )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['clusterName']}:{inputs['nodeGroupName']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        cluster = refuse_missing_cluster(inputs["clusterName"], world)
        vpc_id = first(cluster.outputs, "vpcConfig.vpcId")
        for id in inputs["subnetIds"]:
            subnet = world.get(id, SUBNET)
            if subnet and subnet["vpcId"] != vpc_id:
                raise CloudError(
                    "InvalidParameterException",
                    f"subnetIds: {id} is not in {vpc_id}, the VPC of {cluster.id}",
                )
        refuse_missing_role(inputs["nodeRoleArn"], "nodeRoleArn", world)
        refuse_wrong_trust(inputs["nodeRoleArn"], "ec2.amazonaws.com", "nodeRoleArn", world)
        version = str(inputs.get("version") or cluster["version"])
        if float(version.split(".")[1]) > float(str(cluster["version"]).split(".")[1]):
            raise CloudError(
                "InvalidParameterException",
                f"version: {version} is above {cluster['version']} of the cluster",
            )
        _refuse_template(inputs, world)
        addons = {item["addonName"] for item in world.find(ADDON, clusterName=cluster.id)}
        bare = cluster["bootstrapSelfManagedAddons"] is False and "vpc-cni" not in addons
        if existing is None and bare and not first(cluster.outputs, "computeConfig.enabled"):
            raise CloudError(
                "NodeCreationFailure",
                f"unhealthy nodes: {cluster.id} has no CNI; the vpc-cni add-on must be there before"
                " nodes",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        cluster, name = id.split(":", 1)
        code = digest(id, world.place.account, world.place.region, length=32)
        kubernetes = world.get(cluster, "aws:eks/cluster:Cluster")
        version = inputs.get("version") or (kubernetes["version"] if kubernetes else "")
        return {
            "arn": self.arn_in(
                world,
                "eks",
                f"nodegroup/{cluster}/{name}/{code[:8]}-{code[8:12]}-{code[12:16]}-{code[16:20]}-{code[20:32]}",
            ),
            "status": "ACTIVE",
            "amiType": inputs.get("amiType") or "AL2023_x86_64_STANDARD",
            "capacityType": inputs.get("capacityType") or "ON_DEMAND",
            "instanceTypes": (
                inputs.get("instanceTypes")
                or (["t3.medium"] if not inputs.get("launchTemplate") else [])
            ),
            "version": version,
            "releaseVersion": inputs.get("releaseVersion") or f"{version}.4-20260923",
            "resources": [
                {
                    "autoscalingGroups": [{"name": f"eks-{name}-{code[:8]}"}],
                    "remoteAccessSecurityGroupId": "",
                }
            ],
        }

    def created(self, item: Item, world: World) -> None:
        template = world.get(first(item.inputs, "launchTemplate.id", ""), LAUNCH_TEMPLATE)
        if template and first(template.inputs, "cpuOptions.nestedVirtualization"):
            world.inventory.assume(
                item.id,
                "aws:eks/nodeGroup:NodeGroup",
                item.name,
                "managed node groups drop cpuOptions.nestedVirtualization of the template without a"
                " word",
            )
        _put_node_entry(item, world)


class FargateProfile(AwsModel):
    token = "aws:eks/fargateProfile:FargateProfile"
    auto_name = AutoName("fargateProfileName", 100)
    rules = (length("selectors", 1, 5),)
    arns = (ArnOf("podExecutionRoleArn", "iam", "role/.+"),)
    links = (Link("subnetIds[]", SUBNET, holds=True),)
    replace_on = frozenset(
        {"clusterName", "fargateProfileName", "podExecutionRoleArn", "selectors", "subnetIds"}
    )
    duplicate_code = "ResourceInUseException"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['clusterName']}:{inputs['fargateProfileName']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_missing_cluster(inputs["clusterName"], world)
        refuse_missing_role(inputs["podExecutionRoleArn"], "podExecutionRoleArn", world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "eks", f"fargateprofile/{id.replace(':', '/')}/{digest(id)}"),
            "status": "ACTIVE",
        }


def _check_sizes(sizes: object) -> Iterator[Problem]:
    if not isinstance(sizes, dict) or has_unknown(sizes):
        return
    least, wanted, most = (
        int(sizes.get(name) or 0) for name in ("minSize", "desiredSize", "maxSize")
    )
    if least > most:
        yield Problem("scalingConfig.minSize", f"{least} is above maxSize {most}")
    if not least <= wanted <= most:
        yield Problem(
            "scalingConfig.desiredSize",
            f"{wanted} must lie between minSize {least} and maxSize {most}",
        )


def _refuse_template(inputs: Properties, world: World) -> None:
    template = world.get(first(inputs, "launchTemplate.id", ""), LAUNCH_TEMPLATE)
    if template is None:
        return
    if template["instanceType"] and inputs.get("instanceTypes"):
        raise CloudError(
            "InvalidRequestException",
            "instanceTypes: the launch template names an instance type already",
        )
    if template["imageId"]:
        for name in ("releaseVersion", "version"):
            if inputs.get(name):
                raise CloudError(
                    "InvalidRequestException",
                    f"{name}: not allowed, the launch template names an AMI",
                )
    if template["iamInstanceProfile"]:
        raise CloudError(
            "InvalidRequestException",
            f"launchTemplate: {template.id} must not name an instance profile",
        )
    wanted = str(first(inputs, "launchTemplate.version", ""))
    if wanted.isdigit() and int(wanted) > int(template["latestVersion"] or 1):
        raise CloudError(
            "InvalidRequestException",
            f"launchTemplate.version: {template.id} has no version {wanted}",
        )


def _put_node_entry(group: Item, world: World) -> None:
    """With API authentication EKS makes the node role's access entry itself."""
    cluster = world.get(group["clusterName"], "aws:eks/cluster:Cluster")
    if cluster is None or first(cluster.outputs, "accessConfig.authenticationMode") == "CONFIG_MAP":
        return
    id = f"{cluster.id}:{group['nodeRoleArn']}"
    if world.get(id, ACCESS_ENTRY):
        return
    inputs = {
        "__owner": group.id,
        "clusterName": cluster.id,
        "principalArn": group["nodeRoleArn"],
        "type": "EC2_LINUX",
    }
    outputs = {key: value for key, value in inputs.items() if not key.startswith("__")}
    world.inventory.put(
        Item(ACCESS_ENTRY, world.place.scope("region"), id, group.name, inputs, outputs)
    )


MODELS = (NodeGroup, FargateProfile)
