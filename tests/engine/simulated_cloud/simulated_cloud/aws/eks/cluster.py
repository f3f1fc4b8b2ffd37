"""EKS clusters."""

import base64
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import cidr, length, matches, one_of
from ...values import UNKNOWN, Properties, first, has_unknown, known
from ...world import World
from ..account import caller
from ..ec2.network import SECURITY_GROUP, SUBNET, VPC, put_service_group
from ..ec2.security_groups import refuse_groups_of_other_network
from ..iam.roles import refuse_missing_role, refuse_wrong_trust
from ..kms import refuse_missing_key
from ..logs import put_service_log_group
from ..model import ArnOf, AwsModel, derived_id, digest

CLUSTER: Final = "aws:eks/cluster:Cluster"
ACCESS_ENTRY: Final = "aws:eks/accessEntry:AccessEntry"
VERSIONS: Final = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
"""Kubernetes versions offered here, oldest first; the newest is the default."""
AUTHENTICATION_MODES: Final = ("CONFIG_MAP", "API_AND_CONFIG_MAP", "API")
"""In the order in which they can be changed: forwards only."""
CLUSTER_NAME = matches(
    "name",
    r"[0-9A-Za-z][A-Za-z0-9_-]*",
    "letters, digits, - and _, starting with a letter or digit",
)
_PRIVATE: Final = [
    ipaddress.IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]

# A self-signed certificate (no one has its key): clients want a PEM that parses.
_CERTIFICATE: Final = """\
-----BEGIN CERTIFICATE-----
MIIBizCCATGgAwIBAgIUJCE75k3Bj2ehMqBVKxbk/6i934AwCgYIKoZIzj0EAwIw
GjEYMBYGA1UEAwwPc2ltdWxhdGVkLWNsb3VkMCAXDTI2MTEzMDE2MjAzMFoYDzIx
MjYxMTA2MTYyMDMwWjAaMRgwFgYDVQQDDA9zaW11bGF0ZWQtY2xvdWQwWTATBgcq
hkjOPQIBBggqhkjOPQMBBwNCAASO2y2yOuoNWS/x1aRGxXTEo87W02cha5KvvqfX
/Bm4D0jWVqckITCMszq/pefdsMsuSX70K8X5nkf3cyr+ZVu5o1MwUTAdBgNVHQ4E
FgQU5+Vks88iVWkpSJU5WST7LV15qLEwHwYDVR0jBBgwFoAU5+Vks88iVWkpSJU5
WST7LV15qLEwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBQqhe0
OnNTnwfoWL1HD/cL91Fb3UURycaXWZiEEwYEbgIhAJsiUpzrYBpgFLLPVdYfR2qF
IBBd7aHPpU8WFnNcbWOO
-----END CERTIFICATE-----
"""
CERTIFICATE_AUTHORITY: Final = base64.b64encode(_CERTIFICATE.encode()).decode()


class Cluster(AwsModel):
    token = CLUSTER
    auto_name = AutoName("name", 100)
    rules = (
        length("name", 1, 100),
        CLUSTER_NAME,
        one_of("version", *VERSIONS),
        one_of("accessConfig.authenticationMode", *AUTHENTICATION_MODES),
        one_of(
            "enabledClusterLogTypes[]",
            "api",
            "audit",
            "authenticator",
            "controllerManager",
            "scheduler",
        ),
        one_of("encryptionConfig.resources[]", "secrets"),
        one_of("upgradePolicy.supportType", "STANDARD", "EXTENDED"),
        one_of("kubernetesNetworkConfig.ipFamily", "ipv4", "ipv6"),
        one_of(
            "controlPlaneScalingConfig.tier",
            "standard",
            "tier-xl",
            "tier-2xl",
            "tier-4xl",
            "tier-8xl",
        ),
        cidr("vpcConfig.publicAccessCidrs[]", 0, 32),
        cidr("kubernetesNetworkConfig.serviceIpv4Cidr", 12, 24),
    )
    arns = (
        ArnOf("roleArn", "iam", "role/.+"),
        ArnOf("encryptionConfig.provider.keyArn", "kms", "key/.+", here=True),
    )
    links = (
        Link("vpcConfig.subnetIds[]", SUBNET, holds=True),
        Link("vpcConfig.securityGroupIds[]", SECURITY_GROUP, holds=True),
    )
    replace_on = frozenset(
        {
            "name",
            "roleArn",
            "bootstrapSelfManagedAddons",
            "outpostConfig",
            "encryptionConfig.provider.keyArn",
            "kubernetesNetworkConfig.serviceIpv4Cidr",
            "kubernetesNetworkConfig.ipFamily",
            "accessConfig.bootstrapClusterCreatorAdminPermissions",
        }
    )
    defaults = {"bootstrapSelfManagedAddons": True, "deletionProtection": False}
    computed = frozenset(
        {
            "vpcConfig.vpcId",
            "vpcConfig.clusterSecurityGroupId",
            "kubernetesNetworkConfig.serviceIpv4Cidr",
            "kubernetesNetworkConfig.ipFamily",
        }
    )
    duplicate_code = "ResourceInUseException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from _check_endpoint(inputs)
        for where, block in known(inputs, "kubernetesNetworkConfig.serviceIpv4Cidr"):
            if not any(
                ipaddress.IPv4Network(block, strict=False).subnet_of(private)
                for private in _PRIVATE
            ):
                yield Problem(
                    where, f"{block!r} must lie in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16"
                )
        yield from _check_auto_mode(inputs)

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        subnets = [
            item
            for id in first(inputs, "vpcConfig.subnetIds", [])
            if (item := world.get(id, SUBNET))
        ]
        if len({subnet["vpcId"] for subnet in subnets}) > 1:
            raise CloudError(
                "InvalidParameterException",
                "vpcConfig.subnetIds: the subnets must all be in one VPC",
            )
        zones = {subnet["availabilityZone"] for subnet in subnets}
        if len(zones) < 2:
            raise CloudError(
                "InvalidParameterException",
                "vpcConfig.subnetIds: subnets in at least two zones are needed, not"
                f" {sorted(zones)}",
            )
        _refuse_service_range(inputs, subnets[0]["vpcId"], world)
        groups = first(inputs, "vpcConfig.securityGroupIds", [])
        refuse_groups_of_other_network(
            groups, subnets[0]["vpcId"], world, "vpcConfig.securityGroupIds"
        )
        refuse_missing_role(inputs["roleArn"], "roleArn", world)
        refuse_wrong_trust(inputs["roleArn"], "eks.amazonaws.com", "roleArn", world)
        refuse_missing_key(
            first(inputs, "encryptionConfig.provider.keyArn"),
            "encryptionConfig.provider.keyArn",
            world,
        )
        if existing:
            _refuse_backwards(inputs, existing)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        subnet = world.get(first(inputs, "vpcConfig.subnetIds", [""])[0], SUBNET)
        vpc_id = subnet["vpcId"] if subnet else None
        region, suffix = world.place.region, world.place.dns_suffix
        code = digest(world.place.account, region, id, length=32).upper()
        network = {
            "serviceIpv4Cidr": _default_service_range(vpc_id, world),
            "ipFamily": "ipv4",
            **(inputs.get("kubernetesNetworkConfig") or {}),
        }
        return {
            "arn": self.arn_in(world, "eks", f"cluster/{id}"),
            "endpoint": f"https://{code}.gr7.{region}.eks.{suffix}",
            "certificateAuthority": {"data": CERTIFICATE_AUTHORITY},
            "identities": [
                {"oidcs": [{"issuer": f"https://oidc.eks.{region}.{suffix}/id/{code}"}]}
            ],
            "platformVersion": "eks.9",
            "status": "ACTIVE",
            "createdAt": "2026-01-01T00:00:00Z",
            "clusterId": "",
            "version": inputs.get("version") or VERSIONS[-1],
            "accessConfig": {
                "authenticationMode": "CONFIG_MAP",
                "bootstrapClusterCreatorAdminPermissions": True,
                **(inputs.get("accessConfig") or {}),
            },
            "kubernetesNetworkConfig": network,
            "vpcConfig": {
                "endpointPrivateAccess": False,
                "endpointPublicAccess": True,
                "publicAccessCidrs": ["0.0.0.0/0"],
                "securityGroupIds": [],
                **(inputs.get("vpcConfig") or {}),
                "vpcId": vpc_id,
                "clusterSecurityGroupId": cluster_security_group_id(id, world),
            },
            "upgradePolicy": inputs.get("upgradePolicy") or {"supportType": "EXTENDED"},
        }

    def created(self, item: Item, world: World) -> None:
        group = cluster_security_group_id(item.id, world)
        put_service_group(
            item, group, f"eks-cluster-sg-{item.id}", first(item.outputs, "vpcConfig.vpcId"), world
        )
        if item.inputs.get("enabledClusterLogTypes"):
            put_service_log_group(f"/aws/eks/{item.id}/cluster", world)
        _put_entry_of_creator(item, world)

    def blocks_delete(self, item: Item, world: World) -> str | None:
        if item["deletionProtection"]:
            return (
                f"InvalidRequestException: cluster {item.id} has deletion protection; turn"
                " deletionProtection off first"
            )
        for type in ("aws:eks/nodeGroup:NodeGroup", "aws:eks/fargateProfile:FargateProfile"):
            for other in world.find(type, clusterName=item.id):
                return (
                    f"ResourceInUseException: cluster {item.id} has nodegroups or Fargate profiles"
                    f" attached ({other.id})"
                )
        return None

    def deleted(self, item: Item, world: World) -> None:
        # Add-ons, entries and associations live in the cluster and go with it.
        for type in (
            "aws:eks/addon:Addon",
            ACCESS_ENTRY,
            "aws:eks/podIdentityAssociation:PodIdentityAssociation",
            "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
        ):
            for other in world.find(type, clusterName=item.id):
                world.inventory.remove(other)
        for other in world.inventory.items(scopes=(f"kubernetes/{item['endpoint']}",)):
            world.inventory.remove(other)


def cluster_security_group_id(name: str, world: World) -> str:
    return derived_id("sg", world.place.account, world.place.region, name, "cluster")


def refuse_missing_cluster(name: str, world: World) -> Item:
    """The cluster, or a refusal."""
    found = world.get(name, CLUSTER)
    if found is None:
        raise CloudError("ResourceNotFoundException", f"no cluster found for name: {name}")
    return found


def _put_entry_of_creator(cluster: Item, world: World) -> None:
    """Whoever creates a cluster is its administrator, and has the access entry of that role."""
    access = cluster["accessConfig"]
    given = access["bootstrapClusterCreatorAdminPermissions"]
    if not given or access["authenticationMode"] == "CONFIG_MAP":
        return
    principal = f"arn:{world.place.partition}:iam::{world.place.account}:role/{caller()}"
    outputs = {"clusterName": cluster.id, "principalArn": principal, "type": "STANDARD"}
    inputs = {"__owner": cluster.id, **outputs}
    id = f"{cluster.id}:{principal}"
    scope = world.place.scope("region")
    world.inventory.put(Item(ACCESS_ENTRY, scope, id, cluster.name, inputs, outputs))


def _check_endpoint(inputs: Properties) -> Iterator[Problem]:
    config = inputs.get("vpcConfig")
    if not isinstance(config, dict) or has_unknown(config.get("endpointPublicAccess")):
        return
    public, private = config.get("endpointPublicAccess"), config.get("endpointPrivateAccess")
    if public is False and not private and private is not UNKNOWN:
        yield Problem(
            "vpcConfig.endpointPrivateAccess",
            "private and public access to the API cannot both be off",
        )
    for where, block in known(inputs, "vpcConfig.publicAccessCidrs[]"):
        try:
            network = ipaddress.IPv4Network(block, strict=False)
        except ValueError:
            continue
        if any(network.subnet_of(private_block) for private_block in _PRIVATE):
            yield Problem(
                where,
                f"{block!r} is a private range; the public endpoint is reached from public"
                " addresses",
            )


def _check_auto_mode(inputs: Properties) -> Iterator[Problem]:
    parts = {
        "computeConfig.enabled": first(inputs, "computeConfig.enabled"),
        "kubernetesNetworkConfig.elasticLoadBalancing.enabled": first(
            inputs, "kubernetesNetworkConfig.elasticLoadBalancing.enabled"
        ),
        "storageConfig.blockStorage.enabled": first(inputs, "storageConfig.blockStorage.enabled"),
    }
    if any(parts.values()) and not all(parts.values()):
        missing = next(name for name, value in parts.items() if not value)
        yield Problem(missing, f"Auto Mode needs all three of {', '.join(parts)}")
    if any(parts.values()) and inputs.get("bootstrapSelfManagedAddons") is not False:
        yield Problem("bootstrapSelfManagedAddons", "must be false with Auto Mode")


def _default_service_range(vpc_id: str | None, world: World) -> str:
    vpc = world.get(vpc_id, VPC) if vpc_id else None
    inside = vpc and ipaddress.IPv4Network(vpc["cidrBlock"]).subnet_of(
        ipaddress.IPv4Network("172.16.0.0/12")
    )
    return "10.100.0.0/16" if inside else "172.20.0.0/16"


def _refuse_service_range(inputs: Properties, vpc_id: str, world: World) -> None:
    block = first(inputs, "kubernetesNetworkConfig.serviceIpv4Cidr")
    vpc = world.get(vpc_id, VPC)
    if (
        block
        and vpc
        and ipaddress.IPv4Network(block).overlaps(ipaddress.IPv4Network(vpc["cidrBlock"]))
    ):
        raise CloudError(
            "InvalidParameterException",
            f"serviceIpv4Cidr {block} overlaps {vpc['cidrBlock']} of {vpc.id}",
        )


def _refuse_backwards(inputs: Properties, existing: Item) -> None:
    old, new = str(existing["version"]), str(inputs.get("version") or existing["version"])
    steps = int(new.split(".")[1]) - int(old.split(".")[1])
    if steps < 0:
        raise CloudError(
            "InvalidParameterException", f"version: cannot go back from {old} to {new}"
        )
    if steps > 1:
        raise CloudError(
            "InvalidParameterException",
            f"version: {old} to {new} skips a minor version; go one at a time",
        )
    before = first(existing.outputs, "accessConfig.authenticationMode", "CONFIG_MAP")
    after = first(inputs, "accessConfig.authenticationMode", before)
    if AUTHENTICATION_MODES.index(after) < AUTHENTICATION_MODES.index(before):
        raise CloudError(
            "InvalidParameterException",
            f"accessConfig.authenticationMode: cannot go back from {before} to {after}",
        )
    if first(existing.inputs, "encryptionConfig.provider.keyArn") and not inputs.get(
        "encryptionConfig"
    ):
        raise CloudError(
            "InvalidParameterException", "encryptionConfig: cannot be taken off a cluster"
        )


MODELS = (Cluster,)
