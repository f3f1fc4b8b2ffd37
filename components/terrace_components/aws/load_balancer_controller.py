"""The AWS Load Balancer Controller, cut down to what a load balancer of Pulumi's own needs."""

import re
from typing import Annotated, Any, NotRequired, TypedDict, cast

import pulumi
import pulumi_kubernetes as k8s
from pydantic import AfterValidator, Field, PlainValidator

from terrace_components.arguments import Arguments, Name, Text
from terrace_components.aws.arguments import Tags, VpcId
from terrace_components.aws.arns import Place, policy_document
from terrace_components.aws.pod_identity import AwsPodIdentity
from terrace_components.aws.target_group_binding import TARGET_GROUP

CHART = "aws-load-balancer-controller"
REPOSITORY = "https://aws.github.io/eks-charts"
SERVICE_ACCOUNT = CHART
CORE_TOLERATION = {"key": "CriticalAddonsOnly", "operator": "Exists"}
# The published policy without everything that makes or changes a load balancer: these read.
READ = [
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeInstances",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
    "elasticloadbalancing:DescribeTargetGroupAttributes",
    "elasticloadbalancing:DescribeTargetGroups",
    "elasticloadbalancing:DescribeTargetHealth",
]
TARGETS = ["elasticloadbalancing:DeregisterTargets", "elasticloadbalancing:RegisterTargets"]
INGRESS = ["ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"]


class AwsLoadBalancerControllerArgs(TypedDict):
    """Arguments of ``AwsLoadBalancerController``."""

    # required
    cluster_name: pulumi.Input[str]
    """Name of the EKS cluster; it must have the add-on ``eks-pod-identity-agent``."""
    vpc_id: pulumi.Input[str]
    """VPC of the cluster. Given, because pods can not ask the node's metadata service."""
    region: pulumi.Input[str]
    """Region of the cluster."""
    chart_version: str
    """Exact version of the chart ``aws-load-balancer-controller``, such as ``1.13.4``."""
    target_group_arns: list[pulumi.Input[str]]
    """Target groups whose targets it may register and deregister; no others."""
    # scale and placement
    replicas: NotRequired[int]
    """Pods, 1 to 5, of which one works; default 2."""
    image: NotRequired[str]
    """Its image by tag and digest, ``repository:tag@sha256:<64 hex>``, such as your copy of it;
    default the chart's own, by tag."""
    namespace: NotRequired[str]
    """Namespace to install in; default ``kube-system``."""
    node_selector: NotRequired[dict[str, str]]
    """Labels that the nodes must have; default none."""
    tolerations: NotRequired[list[dict[str, Any]]]
    """Kubernetes tolerations; default the taint of the Core nodes, ``CriticalAddonsOnly``."""
    # installation
    timeout_seconds: NotRequired[int]
    """How long an installation may take before it is rolled back, 60 to 3600; default 600."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made on AWS."""


def _version(value: str) -> str:
    if not re.fullmatch(r"\d+\.\d+\.\d+", value):
        raise ValueError("must be one exact version such as 1.13.4, no range and no latest")
    return value


def _image(value: str) -> str:
    if not re.fullmatch(r"[^\s@]+:[A-Za-z0-9_][A-Za-z0-9._-]*@sha256:[0-9a-f]{64}", value):
        raise ValueError("must name tag and digest: repository:tag@sha256:<64 hex digits>")
    return value


def _region(value: Any) -> str | pulumi.Output[str]:
    if isinstance(value, pulumi.Output):
        return cast(pulumi.Output[str], value)
    if isinstance(value, str) and re.fullmatch(r"[a-z]{2}(-[a-z]+)+-\d", value):
        return value
    raise ValueError("must be an AWS region such as eu-west-1")


class _Controller(Arguments):
    cluster_name: Text
    vpc_id: VpcId
    region: Annotated[str | pulumi.Output[str], PlainValidator(_region)]
    chart_version: Annotated[str, AfterValidator(_version)]
    target_group_arns: list[Annotated[str | pulumi.Output[str], TARGET_GROUP]] = Field(min_length=1)
    replicas: Annotated[int, Field(ge=1, le=5)] = 2
    image: Annotated[str, AfterValidator(_image)] | None = None
    namespace: Name = "kube-system"
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[dict[str, Any]] = Field(default_factory=lambda: [CORE_TOLERATION])
    timeout_seconds: Annotated[int, Field(ge=60, le=3600)] = 600
    tags: Tags = Field(default_factory=dict)


class AwsLoadBalancerController(pulumi.ComponentResource):
    """The controller that makes pods the targets of target groups (``TargetGroupBinding``).

    Pulumi owns the load balancer, so the controller may make none: it watches no Ingress of a
    class, changes no Service, and its role may only read, register targets of the named target
    groups, and let a load balancer in at security groups that belong to the cluster. Helm does not
    renew the chart's CustomResourceDefinitions when the chart's version changes.

    Creates: AwsPodIdentity, Release (rolled back if it does not get ready in time).
    """

    ready: pulumi.Output[str]
    """Name of the release; known when the controller serves."""

    def __init__(
        self,
        name: str,
        args: AwsLoadBalancerControllerArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsLoadBalancerController", name, None, opts)
        given = _Controller.of(args)
        identity = AwsPodIdentity(
            f"{name}-identity",
            {
                "cluster_name": given.cluster_name,
                "namespace": given.namespace,
                "service_account": SERVICE_ACCOUNT,
                "policy": controller_policy(
                    Place.of(self), given.cluster_name, given.target_group_arns
                ),
                "tags": given.tags,
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        release = k8s.helm.v3.Release(
            f"{name}-release",
            name=CHART,
            chart=CHART,
            version=given.chart_version,
            namespace=given.namespace,
            repository_opts={"repo": REPOSITORY},
            values=_values(given),
            atomic=True,
            cleanup_on_fail=True,
            timeout=given.timeout_seconds,
            # A pod that is older than its association has no credentials.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[identity]),
        )
        self.ready = release.id.apply(lambda _: CHART)
        self.register_outputs({"ready": self.ready})


def controller_policy(
    place: Place,
    cluster_name: pulumi.Input[str],
    target_group_arns: list[str | pulumi.Output[str]],
) -> pulumi.Output[str]:
    """JSON text of what the controller may do."""
    security_groups = place.arn("ec2", "security-group/*")
    return pulumi.Output.from_input(cluster_name).apply(
        lambda cluster: policy_document(
            {"Sid": "Read", "Action": READ, "Resource": ["*"]},
            {"Sid": "Targets", "Action": TARGETS, "Resource": target_group_arns},
            {
                "Sid": "LetTheLoadBalancerIn",
                "Action": INGRESS,
                "Resource": [security_groups],
                # EKS tags the security group of the cluster so.
                "Condition": {
                    "StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{cluster}": "owned"}
                },
            },
        )
    )


def _values(given: _Controller) -> dict[str, Any]:
    values: dict[str, Any] = {
        "clusterName": given.cluster_name,
        "region": given.region,
        "vpcId": given.vpc_id,
        "replicaCount": given.replicas,
        "serviceAccount": {"create": True, "name": SERVICE_ACCOUNT},
        "nodeSelector": given.node_selector,
        "tolerations": given.tolerations,
        "podDisruptionBudget": {"maxUnavailable": 1},
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"memory": "256Mi"},
        },
        # The certificate of its webhook stays from one upgrade to the next.
        "keepTLSSecret": True,
        # Everything below takes away what a controller of Ingresses and Services would do.
        "createIngressClassResource": False,
        "ingressClassParams": {"create": False},
        "disableIngressClassAnnotation": True,
        "enableServiceMutatorWebhook": False,
        "enableBackendSecurityGroup": False,
        "enableShield": False,
        "enableWaf": False,
        "enableWafv2": False,
        "controllerConfig": {"featureGates": {"EnableServiceController": False}},
    }
    if given.image is not None:
        repository, _, tag = given.image.partition("@")[0].rpartition(":")
        digest = given.image.partition("@")[2]
        values["image"] = {"repository": repository, "tag": f"{tag}@{digest}"}
    return values
