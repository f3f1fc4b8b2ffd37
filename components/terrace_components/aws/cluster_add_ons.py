"""EKS's own add-ons, at pinned versions, those that nodes need apart from those that need nodes."""

import json
from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field

from terrace_components.arguments import Text
from terrace_components.aws.add_on_settings import BEFORE_NODES, PHASES, AddOnSettings
from terrace_components.aws.arguments import Tags, one_of
from terrace_components.aws.arns import Place, tags
from terrace_components.aws.pod_identity import pod_trust

# add-on: service account of kube-system, and the policy that AWS manages for it
IDENTITIES = {
    "vpc-cni": ("aws-node", "AmazonEKS_CNI_Policy"),
    "aws-ebs-csi-driver": (
        "ebs-csi-controller-sa",
        "service-role/AmazonEBSCSIDriverPolicy",
    ),
}


class TolerationArgs(TypedDict):
    """A toleration, as Kubernetes spells it."""

    key: NotRequired[str]
    """Key of the taint; absent: any."""
    operator: NotRequired[str]
    """``Equal`` (default) or ``Exists``."""
    value: NotRequired[str]
    """Value of the taint, with ``Equal``."""
    effect: NotRequired[str]
    """``NoSchedule``, ``NoExecute`` or ``PreferNoSchedule``; absent: any."""


class AwsClusterAddOnsArgs(TypedDict):
    """Arguments of ``AwsClusterAddOns``."""

    # required
    cluster_name: pulumi.Input[str]
    """Name of the EKS cluster."""
    phase: str
    """``before_nodes``: vpc-cni, kube-proxy and eks-pod-identity-agent, without which no node gets
    ready. ``after_nodes``: coredns, metrics-server and aws-ebs-csi-driver, which are not ready
    without nodes. Make one component of each, with the node groups between them."""
    # versions
    kubernetes_version: NotRequired[str]
    """Minor version of the cluster; default ``1.35``. kube-proxy's must go with it."""
    versions: NotRequired[dict[str, str]]
    """Add-on to version, such as ``coredns: v1.13.2-eksbuild.31``. Default: one pinned version
    each, for Kubernetes 1.35."""
    skip: NotRequired[list[str]]
    """Add-ons that somebody else has installed."""
    # network
    network_policy: NotRequired[bool]
    """``true`` (default): the VPC CNI enforces NetworkPolicies. Without, they are decoration."""
    prefix_delegation: NotRequired[bool]
    """``true`` (default): nodes get /28 prefixes instead of single addresses, so that a small node
    takes 110 pods and not 29. Needs free, whole blocks of 16 addresses in the subnets: set it to
    ``false`` in old, fragmented ones."""
    # scheduling
    tolerations: NotRequired[list[TolerationArgs]]
    """Taints that coredns, metrics-server and the EBS controller tolerate; default
    ``CriticalAddonsOnly``, the taint of Core nodes."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class _AwsClusterAddOns(AddOnSettings):
    cluster_name: Text
    phase: Annotated[str, one_of(*PHASES)]
    tags: Tags = Field(default_factory=dict)


class AwsClusterAddOns(pulumi.ComponentResource):
    """The add-ons of one phase. A destroy takes those after the nodes (CoreDNS and its disruption
    budget would hold up the draining), then the nodes, then these: the CNI outlives every node, and
    no network interface is left behind.

    Creates: Addon each, and an IAM role for those that call AWS.
    """

    names: pulumi.Output[list[str]]
    """Names of the add-ons; known when they are active."""

    def __init__(
        self,
        name: str,
        args: AwsClusterAddOnsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsClusterAddOns", name, None, opts)
        given = _AwsClusterAddOns.of(args)
        made = [
            self._add_on(name, add_on, given)
            for add_on in PHASES[given.phase]
            if add_on not in given.skip
        ]
        names = [add_on.addon_name for add_on in made]
        self.names = pulumi.Output.all(*names).apply(lambda all_: [str(one) for one in all_])
        self.register_outputs({"names": self.names})

    def _add_on(self, name: str, add_on: str, given: _AwsClusterAddOns) -> "aws.eks.Addon":
        configuration = given.configuration(add_on)
        identity: list[aws.eks.AddonPodIdentityAssociationArgsDict] = []
        attached: list[pulumi.Resource] = []
        if add_on in IDENTITIES:
            service_account, _ = IDENTITIES[add_on]
            role, attachment = self._role(name, add_on, given)
            identity = [{"service_account": service_account, "role_arn": role.arn}]
            attached = [attachment]
        return aws.eks.Addon(
            f"{name}-{add_on}",
            cluster_name=given.cluster_name,
            addon_name=add_on,
            addon_version=given.version(add_on),
            configuration_values=json.dumps(configuration, sort_keys=True)
            if configuration
            else None,
            pod_identity_associations=identity or None,
            # What is in code wins, at the first start over what EKS or a person put there.
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            # Taken out of Pulumi, the network of running nodes must go on.
            preserve=add_on in BEFORE_NODES,
            tags=tags(name, given.tags),
            opts=pulumi.ResourceOptions(parent=self, depends_on=attached),
        )

    def _role(
        self, name: str, add_on: str, given: _AwsClusterAddOns
    ) -> "tuple[aws.iam.Role, aws.iam.RolePolicyAttachment]":
        place = Place.of(self)
        service_account, policy = IDENTITIES[add_on]
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            f"{name}-{add_on}-role",
            assume_role_policy=pod_trust(place, given.cluster_name, "kube-system", service_account),
            description=f"Pods of kube-system/{service_account}",
            tags=tags(name, given.tags),
            opts=child,
        )
        attachment = aws.iam.RolePolicyAttachment(
            f"{name}-{add_on}-policy",
            role=role.name,
            policy_arn=place.managed_policy_arn(policy),
            opts=child,
        )
        return role, attachment
