"""An EKS cluster, its control-plane logs and its administrators."""

import ipaddress
import json
import warnings
from typing import NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field, field_validator

from terrace_components.arguments import LateArgumentError
from terrace_components.aws.arguments import KeyArn, Tags, TwoSubnetIds, VpcId
from terrace_components.aws.arns import Place, tags, trust_policy
from terrace_components.aws.cluster_access import (
    CREATOR_TAG,
    add_administrators,
    caller,
    creator,
    creator_is_kept,
    open_api,
)
from terrace_components.aws.cluster_settings import ClusterSettings
from terrace_components.aws.existing import made_here, needed_to_make


class ExistingClusterArgs(TypedDict):
    """A cluster that exists already, in the provider's account and region."""

    name: str
    """Its name. Its authentication mode must be ``API`` or ``API_AND_CONFIG_MAP``."""


class AwsClusterArgs(TypedDict):
    """Arguments of ``AwsCluster``."""

    # required, unless existing
    vpc_id: NotRequired[pulumi.Input[str]]
    """The VPC."""
    subnet_ids: NotRequired[pulumi.Input[list[str]]]
    """Subnets of the control plane's network interfaces, in two zones at least; private ones."""
    secrets_key_arn: NotRequired[pulumi.Input[str]]
    """KMS key that encrypts Kubernetes Secrets (envelope encryption). It cannot be taken back
    later."""
    # access
    api_access_cidrs: NotRequired[list[str]]
    """Public address ranges that may reach the API, such as ``203.0.113.0/24``. Required unless
    ``private_api``; nothing wider than /8."""
    private_api: NotRequired[bool]
    """``true``: the API has no public endpoint, and what works with it (kubectl, Pulumi for what is
    in the cluster) must run where the private endpoint is reached. Default ``false``."""
    private_api_cidrs: NotRequired[list[str]]
    """Address ranges that may reach the private endpoint, such as a runner's subnet or an office
    behind a VPN; nothing wider than /8. With ``private_api`` at least one of these or of
    ``api_client_security_group_ids`` is required. Nodes and pods reach it anyway."""
    api_client_security_group_ids: NotRequired[list[pulumi.Input[str]]]
    """Security groups whose members may reach the private endpoint."""
    admins: NotRequired[list[str]]
    """ARNs of IAM roles or users that become cluster administrators. Whoever creates the cluster
    is one already and must not be named: EKS has one access entry per principal."""
    # cluster
    kubernetes_version: NotRequired[str]
    """Minor version; default ``1.35``."""
    support: NotRequired[str]
    """``STANDARD`` (default; EKS upgrades the cluster when standard support ends) or
    ``EXTENDED``."""
    service_cidr: NotRequired[str]
    """Range of Service addresses, outside the VPC's; default ``172.20.0.0/16``. It cannot be
    changed later."""
    log_types: NotRequired[list[str]]
    """Control-plane logs that CloudWatch keeps; default all: ``api``, ``audit``,
    ``authenticator``, ``controllerManager``, ``scheduler``."""
    log_retention_days: NotRequired[int]
    """How long they are kept, in days; default 90."""
    log_key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the log group; its policy must let CloudWatch Logs use it. Default: a key of
    AWS's own."""
    deletion_protection: NotRequired[bool]
    """``true`` (default): EKS refuses to delete the cluster until this is ``false`` and applied."""
    # or
    existing: NotRequired[ExistingClusterArgs]
    """A cluster that exists already, instead of all of the above but ``admins``."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class _AwsCluster(ClusterSettings):
    vpc_id: VpcId | None = Field(default=None, validate_default=True)
    subnet_ids: TwoSubnetIds | None = Field(default=None, validate_default=True)
    secrets_key_arn: KeyArn | None = Field(default=None, validate_default=True)
    log_key_arn: KeyArn | None = None
    tags: Tags = Field(default_factory=dict)

    needed = field_validator("vpc_id", "subnet_ids", "secrets_key_arn")(needed_to_make)
    key = field_validator("log_key_arn")(made_here)


class AwsCluster(pulumi.ComponentResource):
    """An EKS cluster without nodes and without add-ons of its own (AwsNodeGroup and
    AwsClusterAddOns have them), or one that exists already.

    Authentication is by access entries only; the API's endpoint is open to named ranges, or
    private.

    Creates: IAM role, CloudWatch log group, eks:Cluster, AccessEntry and
    AccessPolicyAssociation per administrator, SecurityGroupIngressRule per client of the private
    endpoint.
    """

    name: pulumi.Output[str]
    """Name of the cluster; known when it is ready."""
    arn: pulumi.Output[str]
    """ARN of the cluster."""
    endpoint: pulumi.Output[str]
    """URL of the Kubernetes API."""
    certificate_authority: pulumi.Output[str]
    """The API's certificate authority, PEM in base64."""
    kubeconfig: pulumi.Output[str]
    """A kubeconfig in JSON. It asks ``aws eks get-token`` for a token and holds no secret."""
    security_group_id: pulumi.Output[str]
    """The cluster's security group, which EKS makes; managed nodes and their pods are in it."""
    version: pulumi.Output[str]
    """Minor version of Kubernetes."""
    service_cidr: pulumi.Output[str]
    """Range of Service addresses."""
    api_address: pulumi.Output[str]
    """Address of the Service ``kubernetes``, the first of that range."""

    def __init__(
        self,
        name: str,
        args: AwsClusterArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsCluster", name, None, opts)
        given = _AwsCluster.of(args)
        place = Place.of(self)
        created_by: pulumi.Output[str] | None = None
        if given.existing is None:
            role = self._role(name, given)
            created_by = creator(role)
            ready = self._make(name, given, place, role)
        else:
            ready = pulumi.Output.from_input(given.existing.name)
        found = aws.eks.get_cluster_output(name=ready, opts=pulumi.InvokeOutputOptions(parent=self))
        modes = found.access_configs.apply(lambda all_: [c.authentication_mode for c in all_])
        self.name = pulumi.Output.all(ready, modes).apply(
            lambda both: _by_access_entries(str(both[0]), list(both[1]))
        )
        self.arn = found.arn
        self.endpoint = found.endpoint
        self.certificate_authority = found.certificate_authorities.apply(lambda all_: all_[0].data)
        self.security_group_id = found.vpc_config.apply(lambda vpc: vpc.cluster_security_group_id)
        self.version = found.version
        self.service_cidr = found.kubernetes_network_configs.apply(
            lambda configs: configs[0].service_ipv4_cidr
        )
        self.api_address = self.service_cidr.apply(lambda cidr: str(ipaddress.ip_network(cidr)[1]))
        opened = open_api(
            name,
            security_group_id=self.security_group_id,
            cidrs=given.private_api_cidrs,
            group_ids=given.api_client_security_group_ids,
            own_tags=given.tags,
            parent=self,
        )
        # With a private API nobody gets in before the rules stand.
        awaited = [rule.id for rule in opened] if given.private_api else []
        self.kubeconfig = pulumi.Output.all(
            self.name, self.endpoint, self.certificate_authority, place.region, *awaited
        ).apply(lambda parts: kubeconfig(*map(str, parts[:4])))
        add_administrators(
            name,
            given.admins,
            cluster_name=self.name,
            created_by=created_by,
            partition=place.partition,
            own_tags=given.tags,
            parent=self,
        )
        self.register_outputs(
            {
                "name": self.name,
                "arn": self.arn,
                "endpoint": self.endpoint,
                "certificateAuthority": self.certificate_authority,
                "kubeconfig": self.kubeconfig,
                "securityGroupId": self.security_group_id,
                "version": self.version,
                "serviceCidr": self.service_cidr,
                "apiAddress": self.api_address,
            }
        )

    def _role(self, name: str, given: _AwsCluster) -> "aws.iam.Role":
        """The control plane's role. It says who created the cluster; EKS does not."""
        return aws.iam.Role(
            f"{name}-eks",
            assume_role_policy=trust_policy("eks.amazonaws.com"),
            description="Lets EKS run the control plane",
            tags={**tags(name, given.tags), CREATOR_TAG: caller(self)},
            opts=creator_is_kept(pulumi.ResourceOptions(parent=self)),
        )

    def _make(
        self, name: str, given: _AwsCluster, place: Place, role: "aws.iam.Role"
    ) -> pulumi.Output[str]:
        """The cluster; its name, known when it is ready."""
        with warnings.catch_warnings():
            # It warns of a class of its own that is not used here; and it takes a second to load,
            # which stacks without AWS need not wait for.
            warnings.simplefilter("ignore", DeprecationWarning)
            import pulumi_eks as eks  # noqa: PLC0415
        child = pulumi.ResourceOptions(parent=self)
        policy = aws.iam.RolePolicyAttachment(
            f"{name}-eks-policy",
            role=role.name,
            policy_arn=place.managed_policy_arn("AmazonEKSClusterPolicy"),
            opts=child,
        )
        # The cluster takes the role's name, which Pulumi makes unique: so the name is known before
        # there is a cluster, and the log group below is ours. EKS would make one that is kept for
        # ever, and left behind by a destroy.
        log_group = aws.cloudwatch.LogGroup(
            f"{name}-logs",
            name=pulumi.Output.concat("/aws/eks/", role.name, "/cluster"),
            retention_in_days=given.log_retention_days,
            kms_key_id=given.log_key_arn,
            tags=tags(name, given.tags),
            opts=child,
        )
        cluster = eks.Cluster(
            f"{name}-core",
            name=role.name,
            vpc_id=given.vpc_id,
            subnet_ids=given.subnet_ids,
            version=given.kubernetes_version,
            service_role=role,
            authentication_mode=eks.AuthenticationMode.API,
            encryption_config_key_arn=given.secrets_key_arn,
            enabled_cluster_log_types=given.log_types,
            kubernetes_service_ip_address_range=given.service_cidr,
            endpoint_private_access=True,
            endpoint_public_access=not given.private_api,
            public_access_cidrs=None if given.private_api else given.api_access_cidrs,
            deletion_protection=given.deletion_protection,
            upgrade_policy={"support_type": given.support},
            tags=tags(name, given.tags),
            # Nodes and add-ons are components of their own, by pulumi-aws.
            skip_default_node_group=True,
            create_instance_role=False,
            use_default_vpc_cni=True,
            kube_proxy_addon_options={"enabled": False},
            coredns_addon_options={"enabled": False},
            bootstrap_self_managed_addons=False,
            # One security group for control plane and nodes: the one that EKS makes.
            skip_default_security_groups=True,
            # Pods get their rights by Pod Identity. With an OIDC provider, pulumi-eks opens a TLS
            # connection to the issuer even in a preview.
            create_oidc_provider=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy, log_group]),
        )
        # kubeconfig_json is the one output of pulumi-eks that this relies on, and only for when it
        # is known: when the API answers. What is in it, get_cluster says as well.
        return pulumi.Output.all(role.name, cluster.kubeconfig_json).apply(
            lambda both: str(both[0])
        )


def kubeconfig(name: str, endpoint: str, certificate_authority: str, region: str) -> str:
    """A kubeconfig in JSON whose user is whoever the AWS CLI is."""
    token = ["--region", region, "eks", "get-token", "--cluster-name", name, "--output", "json"]
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": endpoint,
                        "certificate-authority-data": certificate_authority,
                    },
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "exec": {
                            "apiVersion": "client.authentication.k8s.io/v1beta1",
                            "command": "aws",
                            "args": token,
                            "interactiveMode": "Never",
                        }
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        sort_keys=True,
    )


def _by_access_entries(name: str, modes: list[str]) -> str:
    """The name, if the cluster knows access entries; they are what this package works with."""
    if "CONFIG_MAP" in modes:
        raise LateArgumentError(
            "existing.name",
            f"{name} has the authentication mode CONFIG_MAP; it must be API or API_AND_CONFIG_MAP. "
            "To change it (there is no way back): aws eks update-cluster-config "
            f"--name {name} --access-config authenticationMode=API_AND_CONFIG_MAP",
        )
    return name
