"""A managed group of EKS nodes: Core, where the platform itself runs."""

import base64
from typing import NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field

from terrace_components.arguments import Text
from terrace_components.aws.arguments import KeyArn, SubnetIds, Tags
from terrace_components.aws.arns import Place, policy_document, tags
from terrace_components.aws.node_settings import EFFECTS, NodeSettings

# What a node needs to join and to pull images. The CNI, and all else, has Pod Identity.
POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")


class NodeTaintArgs(TypedDict):
    """A taint, as Kubernetes spells it."""

    key: str
    """Key, such as ``CriticalAddonsOnly``."""
    value: NotRequired[str]
    """Value; default empty."""
    effect: str
    """``NoSchedule``, ``NoExecute`` or ``PreferNoSchedule``."""


class NodeReserveArgs(TypedDict):
    """Room for what keeps the cluster alive. Default: two replicas each of Karpenter, CoreDNS,
    metrics-server, the EBS CSI controller and the load balancer controller."""

    cpu: NotRequired[str]
    """CPU of all of them together; default ``2720m``."""
    memory: NotRequired[str]
    """Memory of all of them together; default ``3324Mi``."""
    pods: NotRequired[int]
    """Their number; default 10."""


class InstanceCapacityArgs(TypedDict):
    """An instance type that the table of this package does not have, as EC2 describes it."""

    vcpus: int
    """vCPUs."""
    memory_gib: float
    """Memory in GiB."""
    network_interfaces: int
    """Network interfaces of the default network card."""
    addresses_per_interface: int
    """IPv4 addresses of each interface."""
    arm64: NotRequired[bool]
    """``true`` for Graviton; default ``false``."""


class AwsNodeGroupArgs(TypedDict):
    """Arguments of ``AwsNodeGroup``."""

    # required
    cluster_name: pulumi.Input[str]
    """Name of the EKS cluster."""
    subnet_ids: pulumi.Input[list[str]]
    """Private subnets that nodes are spread over; one per zone."""
    # version
    kubernetes_version: NotRequired[str]
    """Minor version of the nodes; default ``1.35``."""
    ami_release_version: NotRequired[str]
    """Release of the EKS AL2023 image, of the same minor version; default ``1.35.7-20260911``.
    Never an alias."""
    # size
    instance_types: NotRequired[list[str]]
    """EC2 types that EKS may take, of one architecture; default ``m7i.xlarge``."""
    instance_capacity: NotRequired[InstanceCapacityArgs]
    """What the types have that this package's table does not know."""
    min_size: NotRequired[int]
    """Fewest nodes, and how many there are unless ``autoscaled``; default 3."""
    max_size: NotRequired[int]
    """Most nodes; default 6. Updates add a node before they take one."""
    autoscaled: NotRequired[bool]
    """``true``: something else sets the number of nodes, and Pulumi leaves it. Default ``false``.
    While ``true``, raise ``min_size`` only to what there is already."""
    reserve: NotRequired[NodeReserveArgs]
    """Room that ``min_size`` - 1 nodes must have for what keeps the cluster alive; checked against
    the instance types before anything is made."""
    prefix_delegation: NotRequired[bool]
    """``true`` (default) where the VPC CNI hands out /28 prefixes: sets how many pods a node
    takes. Must be the same as that of ``AwsClusterAddOns``."""
    disk_gib: NotRequired[int]
    """Size of the encrypted gp3 root volume in GiB; default 80."""
    disk_key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the root volume, whose policy must let EC2 Auto Scaling use it. Default: the
    account's key for EBS."""
    # scheduling
    labels: NotRequired[dict[str, str]]
    """Labels of the nodes; default ``terrace.dev/nodes: core``."""
    taints: NotRequired[list[NodeTaintArgs]]
    """Taints of the nodes; default ``CriticalAddonsOnly=true:NoSchedule``, so that only pods that
    say so fill them."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made, instances and volumes too."""


class _AwsNodeGroup(NodeSettings):
    cluster_name: Text
    subnet_ids: SubnetIds
    disk_key_arn: KeyArn | None = None
    tags: Tags = Field(default_factory=dict)


class AwsNodeGroup(pulumi.ComponentResource):
    """A managed node group on AL2023: one pinned image, IMDSv2 for the node alone (hop limit 1),
    an encrypted disk, and a role that can join and pull, no more.

    The VPC CNI and kube-proxy must be there before and until after: make it depend on the
    ``before_nodes`` add-ons.

    Creates: IAM role, LaunchTemplate, NodeGroup.
    """

    name: pulumi.Output[str]
    """Name of the node group; known when its nodes are ready."""
    node_role_arn: pulumi.Output[str]
    """ARN of the nodes' role."""
    max_pods: pulumi.Output[int]
    """Pods that each node takes."""
    free_millicores: pulumi.Output[int]
    """CPU that ``min_size`` nodes have for workloads, daemons and ``reserve`` taken off."""
    free_memory_mib: pulumi.Output[int]
    """Memory that they have for workloads, in MiB."""
    free_pods: pulumi.Output[int]
    """Pods that they have room for."""

    def __init__(
        self,
        name: str,
        args: AwsNodeGroupArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsNodeGroup", name, None, opts)
        given = _AwsNodeGroup.of(args)
        role, attached = self._role(name, given)
        template = self._template(name, given)
        group = aws.eks.NodeGroup(
            f"{name}-nodes",
            cluster_name=given.cluster_name,
            node_role_arn=role.arn,
            subnet_ids=given.subnet_ids,
            ami_type="AL2023_ARM_64_STANDARD" if _arm64(given) else "AL2023_x86_64_STANDARD",
            version=given.kubernetes_version,
            release_version=given.ami_release_version,
            capacity_type="ON_DEMAND",
            instance_types=given.instance_types,
            launch_template={
                "id": template.id,
                "version": template.latest_version.apply(lambda version: str(int(version))),
            },
            scaling_config={
                "min_size": given.min_size,
                "max_size": given.max_size,
                "desired_size": given.min_size,
            },
            update_config={"max_unavailable": 1},
            node_repair_config={"enabled": True},
            labels=given.labels,
            taints=[
                {"key": taint.key, "value": taint.value, "effect": EFFECTS[taint.effect]}
                for taint in given.taints
            ],
            tags=tags(name, given.tags),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=attached,
                ignore_changes=["scalingConfig.desiredSize"] if given.autoscaled else None,
            ),
        )
        self.name = group.node_group_name
        # From the group, so that whoever uses it waits until the nodes are there.
        self.node_role_arn = group.node_role_arn
        self.max_pods = pulumi.Output.from_input(given.max_pods)
        self.free_millicores = pulumi.Output.from_input(given.left.millicores)
        self.free_memory_mib = pulumi.Output.from_input(given.left.memory_mib)
        self.free_pods = pulumi.Output.from_input(given.left.pods)
        self.register_outputs(
            {
                "name": self.name,
                "nodeRoleArn": self.node_role_arn,
                "maxPods": self.max_pods,
                "freeMillicores": self.free_millicores,
                "freeMemoryMib": self.free_memory_mib,
                "freePods": self.free_pods,
            }
        )

    def _role(
        self, name: str, given: _AwsNodeGroup
    ) -> "tuple[aws.iam.Role, list[aws.iam.RolePolicyAttachment]]":
        place = Place.of(self)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            f"{name}-role",
            assume_role_policy=policy_document(
                {
                    "Principal": {"Service": pulumi.Output.concat("ec2.", place.dns_suffix)},
                    "Action": "sts:AssumeRole",
                }
            ),
            description="Lets EC2 instances join the cluster and pull images",
            tags=tags(name, given.tags),
            opts=child,
        )
        return role, [
            aws.iam.RolePolicyAttachment(
                f"{name}-{policy}",
                role=role.name,
                policy_arn=place.managed_policy_arn(policy),
                opts=child,
            )
            for policy in POLICIES
        ]

    def _template(self, name: str, given: _AwsNodeGroup) -> "aws.ec2.LaunchTemplate":
        named = tags(name, given.tags, Name=name)
        return aws.ec2.LaunchTemplate(
            f"{name}-template",
            description="Terrace nodes",
            update_default_version=True,
            # No image, no security group: so EKS takes the release above, and its own group.
            user_data=node_config(given.max_pods),
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                # One hop ends at the node: a pod without host network cannot have its role.
                "http_put_response_hop_limit": 1,
                "instance_metadata_tags": "disabled",
            },
            block_device_mappings=[
                {
                    "device_name": "/dev/xvda",
                    "ebs": {
                        "volume_type": "gp3",
                        "volume_size": given.disk_gib,
                        "encrypted": "true",
                        "kms_key_id": given.disk_key_arn,
                        "delete_on_termination": "true",
                    },
                }
            ],
            tag_specifications=[
                {"resource_type": kind, "tags": named}
                for kind in ("instance", "volume", "network-interface")
            ],
            tags=tags(name, given.tags),
            opts=pulumi.ResourceOptions(parent=self),
        )


def node_config(max_pods: int) -> str:
    """User data, base64: what EKS adds to its own for AL2023. EKS's own count of pods does not see
    how the CNI is configured."""
    lines = [
        "MIME-Version: 1.0",
        'Content-Type: multipart/mixed; boundary="//"',
        "",
        "--//",
        "Content-Type: application/node.eks.aws",
        "",
        "---",
        "apiVersion: node.eks.aws/v1alpha1",
        "kind: NodeConfig",
        "spec:",
        "  kubelet:",
        "    config:",
        f"      maxPods: {max_pods}",
        "--//--",
        "",
    ]
    return base64.b64encode("\n".join(lines).encode()).decode()


def _arm64(given: NodeSettings) -> bool:
    return given.types[0].arm64
