"""The layers of stage 1 on a substrate. Each sees the contract and the layers below it."""

from dataclasses import dataclass

import pulumi

from terrace_blueprints.foundation import Foundation, after, build_foundation
from terrace_blueprints.gateway import check_streams, gateway_args
from terrace_blueprints.spelling import camel_case
from terrace_blueprints.storage import ebs_class
from terrace_blueprints.substrates.contract import Admission, Substrate, SubstrateError
from terrace_common.governance import load_governance
from terrace_common.names import (
    GATEWAY,
    GATEWAY_METRICS_PORT,
    MODEL_SIMULATOR,
    NAMESPACE_GATEWAY,
    NAMESPACE_OBSERVABILITY,
    NAMESPACE_PROVIDERS,
    PROMETHEUS,
    QUOTA_SYNC,
    QUOTA_SYNC_METRICS_PORT,
)
from terrace_components import (
    AdmissionPolicies,
    AwsLoadBalancerController,
    AwsLoadBalancerControllerArgs,
    BedrockAccess,
    BedrockAccessArgs,
    BedrockInvocationLogs,
    BedrockInvocationLogsArgs,
    GovernanceGateway,
    ModelSimulator,
    ModelSimulatorArgs,
    Observability,
    ObservabilityArgs,
    QuotaSync,
    QuotaSyncArgs,
    TargetGroupBinding,
)
from terrace_components.arguments import PodPeerArgs, ResourcesArgs
from terrace_policies.admission import manifests
from terrace_policies.configuration import Configuration

GATEWAY_METRICS: PodPeerArgs = {
    "namespace": NAMESPACE_GATEWAY,
    "pod": GATEWAY.name,
    "port": GATEWAY_METRICS_PORT,
}
SIMULATOR_METRICS: PodPeerArgs = {
    "namespace": NAMESPACE_PROVIDERS,
    "pod": MODEL_SIMULATOR.name,
    "port": MODEL_SIMULATOR.port,
}
QUOTA_SYNC_RESOURCES: ResourcesArgs = {
    "cpu": "20m",
    "memory": "96Mi",
    "memory_limit": "256Mi",
}
QUOTA_SYNC_METRICS: PodPeerArgs = {
    "namespace": NAMESPACE_GATEWAY,
    "pod": QUOTA_SYNC,
    "port": QUOTA_SYNC_METRICS_PORT,
}


@dataclass(frozen=True)
class StageOne:
    """The components of stage 1. What a substrate has no need of is ``None``."""

    foundation: Foundation
    observability: Observability
    gateway: GovernanceGateway
    simulator: ModelSimulator | None
    bedrock: BedrockAccess | None
    invocation_logs: BedrockInvocationLogs | None
    binding: TargetGroupBinding | None
    quota_sync: QuotaSync | None


def build_stage_one(
    substrate: Substrate,
    *,
    governance: str,
    otlp_endpoint: str | None,
    opts: pulumi.ResourceOptions,
) -> StageOne:
    """Foundation, observability, gateway, and the simulated providers where there are no others.

    The Secrets come first. Database, gateway, simulator and Prometheus then start side by side:
    the gateway is not ready before the database is, and the wait for both is the longer one only.
    """
    if substrate.admission is not None:
        # Before anything that they would refuse.
        opts = after(opts, [_admission_policies(substrate.admission, opts)])
    check_streams(substrate, governance)
    foundation = build_foundation(substrate, opts)
    ordered = after(opts, foundation.ready)
    simulator = _simulator(substrate, ordered) if substrate.simulates_providers else None
    bedrock = _bedrock(substrate, governance)
    logs = _invocation_logs(substrate)
    binding = _binding(substrate, opts, ordered)
    # Pods get an identity and a readiness gate when they are created; and no call is unlogged.
    volumes = ebs_class(substrate, opts)
    before_gateway = [made for made in (bedrock, logs, binding, volumes) if made is not None]
    gateway = GovernanceGateway(
        "gateway",
        gateway_args(substrate, governance, otlp_endpoint, pod_identity=bedrock is not None),
        opts=after(ordered, before_gateway),
    )
    quotas = _quota_sync(substrate, governance, ordered)
    return StageOne(
        foundation=foundation,
        observability=_observability(substrate, ordered, quotas is not None),
        gateway=gateway,
        simulator=simulator,
        bedrock=bedrock,
        invocation_logs=logs,
        binding=binding,
        quota_sync=quotas,
    )


def _admission_policies(admission: Admission, opts: pulumi.ResourceOptions) -> AdmissionPolicies:
    immutable = {"immutable-registries": [*admission.immutable_images]}
    configuration = Configuration(parameters={"pod-image-pinned": immutable})
    policies = manifests(configuration, allowed_node_ports=admission.node_ports)
    return AdmissionPolicies("admission", {"policies": policies}, opts=opts)


def _simulator(substrate: Substrate, opts: pulumi.ResourceOptions) -> ModelSimulator:
    args: ModelSimulatorArgs = {
        "namespace": NAMESPACE_PROVIDERS,
        "image": substrate.images.ref("model-simulator"),
        "storage": substrate.objects.volume(MODEL_SIMULATOR.name, substrate.sizes.bill_storage),
        "resources": substrate.sizes.model_simulator,
        "scheduling": substrate.scheduling["core"],
    }
    if MODEL_SIMULATOR.name in substrate.exposure.node_ports:
        args["node_port"] = substrate.exposure.node_ports[MODEL_SIMULATOR.name]
    return ModelSimulator("model-simulator", args, opts=opts)


def _observability(
    substrate: Substrate, opts: pulumi.ResourceOptions, quota_sync: bool
) -> Observability:
    args: ObservabilityArgs = {
        "namespace": NAMESPACE_OBSERVABILITY,
        "image": substrate.images.ref("prometheus"),
        "resources": substrate.sizes.prometheus,
        "targets": [
            GATEWAY_METRICS,
            *([SIMULATOR_METRICS] if substrate.simulates_providers else []),
            *([QUOTA_SYNC_METRICS] if quota_sync else []),
        ],
        "scrape_interval_seconds": substrate.scrape_interval_seconds,
        "scheduling": substrate.scheduling["core"],
    }
    if PROMETHEUS.name in substrate.exposure.node_ports:
        args["node_port"] = substrate.exposure.node_ports[PROMETHEUS.name]
    return Observability("observability", args, opts=opts)


def _bedrock(substrate: Substrate, governance: str) -> BedrockAccess | None:
    """The right to call exactly the catalogue's models, where pods have an identity; and to use
    the key of captures and the bucket of anchors, where the substrate has them."""
    identity = substrate.identity.pod_identity
    ambient = [
        provider
        for provider in load_governance(governance, "governance").providers
        if provider.kind == "bedrock" and provider.credentials == "ambient"
    ]
    captures, anchors = substrate.capture_key, substrate.anchors
    if identity is None or not (ambient or captures or anchors):
        return None

    args: BedrockAccessArgs = {
        "governance": governance,
        "cluster_name": identity.cluster_name,
        "namespace": NAMESPACE_GATEWAY,
        "service_account": GATEWAY.name,
        "tags": identity.tags,
    }
    if captures is not None:
        args["captures_key_arn"] = captures.arn
        args["earlier_captures_key_arns"] = [*captures.earlier]
    if anchors is not None:
        args["anchors"] = {
            "bucket": anchors.bucket,
            "retention": anchors.retention_days is not None,
        }
        if anchors.key_arn is not None:
            args["anchors"]["key_arn"] = anchors.key_arn
    return BedrockAccess("bedrock", args)


def _quota_sync(
    substrate: Substrate, governance: str, opts: pulumi.ResourceOptions
) -> QuotaSync | None:
    """Where a real Bedrock is called and the stack names the image of quota_sync."""
    real = [
        provider
        for provider in load_governance(governance, "governance").providers
        if provider.kind == "bedrock" and provider.endpoint is None
    ]
    if not real or QUOTA_SYNC not in substrate.images.references:
        return None

    args: QuotaSyncArgs = {
        "namespace": NAMESPACE_GATEWAY,
        "image": substrate.images.ref(QUOTA_SYNC),
        "resources": QUOTA_SYNC_RESOURCES,
        "scheduling": substrate.scheduling["core"],
    }
    identity = substrate.identity.pod_identity
    if identity is not None and any(provider.credentials == "ambient" for provider in real):
        args["cluster_name"] = identity.cluster_name
        args["tags"] = identity.tags
    keys = {
        variable: key
        for variable, key in substrate.identity.provider_credentials.items()
        if variable.startswith("AWS_")
    }
    if keys:
        args["provider_credentials"] = keys
    if substrate.private_endpoints:
        args["extra_egress"] = [*substrate.private_endpoints]
    return QuotaSync("quota-sync", args, opts=opts)


def _invocation_logs(substrate: Substrate) -> BedrockInvocationLogs | None:
    asked = substrate.invocation_logs
    if asked is None:
        return None

    args: BedrockInvocationLogsArgs = {
        "log_retention_days": asked.retention_days,
        "capture_content": asked.capture_content,
        "tags": asked.tags,
    }
    if asked.key_arn is not None:
        args["key_arn"] = asked.key_arn
    try:
        return BedrockInvocationLogs("bedrock-invocations", args)
    except pulumi.InputPropertyError as error:
        key, reason = camel_case(str(error.property_path)), error.reason
    raise SubstrateError(f"terrace:bedrockInvocationLogs.{key}: {reason}")


def _binding(
    substrate: Substrate, opts: pulumi.ResourceOptions, ordered: pulumi.ResourceOptions
) -> TargetGroupBinding | None:
    """The gateway's pods behind the load balancer, where there is one: the controller first, and
    gone last, because a binding that outlives it never ends. The binding waits for its namespace
    (``ordered``) too."""
    load_balancer = substrate.exposure.load_balancer
    identity = substrate.identity.pod_identity
    if load_balancer is None or identity is None:
        return None

    args: AwsLoadBalancerControllerArgs = {
        "cluster_name": identity.cluster_name,
        "vpc_id": load_balancer.vpc_id,
        "region": load_balancer.region,
        "chart_version": load_balancer.controller_chart,
        "target_group_arns": [load_balancer.target_group_arn],
        "tags": identity.tags,
    }
    if load_balancer.controller_image is not None:
        args["image"] = load_balancer.controller_image
    controller = AwsLoadBalancerController("load-balancer-controller", args, opts=opts)
    return TargetGroupBinding(
        "gateway-binding",
        {
            "namespace": NAMESPACE_GATEWAY,
            "service": GATEWAY.name,
            "port": GATEWAY.port,
            "target_group_arn": load_balancer.target_group_arn,
            "load_balancer_security_group_id": load_balancer.security_group_id,
        },
        opts=after(ordered, [controller]),
    )
