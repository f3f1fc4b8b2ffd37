"""The gateway's arguments on a substrate: database, scale, and the ways in and out."""

import pulumi

from terrace_blueprints.substrates.contract import (
    PostgresAccess,
    Scale,
    Substrate,
    SubstrateError,
)
from terrace_common.governance import load_governance
from terrace_common.names import (
    GATEWAY,
    GATEWAY_ADMIN,
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    POSTGRES,
)
from terrace_components import GovernanceGatewayArgs
from terrace_components.gateway.autoscaling import AutoscalingArgs
from terrace_components.gateway.pod import SHUTDOWN_MARGIN_SECONDS


def gateway_args(
    substrate: Substrate, governance: str, otlp_endpoint: str | None, *, pod_identity: bool
) -> GovernanceGatewayArgs:
    """Arguments of ``GovernanceGateway``. ``governance`` is the spec's text; ``pod_identity``:
    whether a role is associated with the gateway's service account."""
    args: GovernanceGatewayArgs = {
        "namespace": NAMESPACE_GATEWAY,
        "guard_image": substrate.images.ref("gateway"),
        "translator_image": substrate.images.ref("translator"),
        "governance": governance,
        "guard_resources": substrate.sizes.guard,
        "translator_resources": substrate.sizes.translator,
        "provider_credentials": substrate.identity.provider_credentials,
        "scheduling": substrate.scheduling["core"],
        "spool": substrate.objects.spool("gateway-spool", substrate.sizes.spool_storage),
    }
    _database(args, substrate.postgres)
    _scale(args, substrate.gateway)
    if guard := _guard_settings(substrate):
        args["guard_settings"] = guard
    if pod_identity:
        args["pod_identity"] = True
    if substrate.private_endpoints:
        args["extra_egress"] = [*substrate.private_endpoints]
    load_balancer = substrate.exposure.load_balancer
    if load_balancer is not None:
        args["keep_alive_seconds"] = load_balancer.keep_alive_seconds
        args["drain_delay_seconds"] = load_balancer.deregistration_seconds
    node_ports = substrate.exposure.node_ports
    if GATEWAY.name in node_ports:
        args["public_node_port"] = node_ports[GATEWAY.name]
    if GATEWAY_ADMIN.name in node_ports:
        args["admin_node_port"] = node_ports[GATEWAY_ADMIN.name]
    if otlp_endpoint is not None:
        args["otlp_endpoint"] = otlp_endpoint
    return args


def check_streams(substrate: Substrate, governance: str) -> None:
    """Compare the longest stream of the spec with what may end a pod's streams before that.

    Raises ``SubstrateError`` where the load balancer would cut them. Warns where the cluster gives
    a drain less time: there the operator of a node update decides.
    """
    longest = load_governance(governance, "governance").defaults.hard_stream_limit_seconds
    load_balancer = substrate.exposure.load_balancer
    delay = None if load_balancer is None else load_balancer.deregistration_delay_seconds
    if delay is not None and longest > delay:
        raise SubstrateError(
            f"governance: defaults.hard_stream_limit_seconds is {longest}, but the load balancer "
            f"cuts the streams of a pod that goes after {delay} s: lower the limit to {delay} or "
            f"less, or set terrace:aws.loadBalancer.deregistrationDelaySeconds of the substrate "
            f"stack to {longest} or more (at most 3600)"
        )
    grace = longest + SHUTDOWN_MARGIN_SECONDS
    if load_balancer is not None:
        grace += load_balancer.deregistration_seconds
    limit = substrate.cluster.drain_limit_seconds
    if limit is not None and grace > limit:
        pulumi.log.warn(
            f"governance: defaults.hard_stream_limit_seconds is {longest}, so a pod of the gateway "
            f"may take {grace} s to end; an update of managed nodes fails (PodEvictionFailure) "
            f"when one takes more than {limit} s"
        )


def _guard_settings(substrate: Substrate) -> dict[str, str]:
    made: dict[str, str] = {}
    if substrate.capture_key is not None:
        made["capture_kms_key_arn"] = substrate.capture_key.arn
    anchors = substrate.anchors
    if anchors is not None:
        made["anchor_location"] = f"s3://{anchors.bucket}"
        if anchors.retention_days is not None:
            made["anchor_retention_days"] = str(anchors.retention_days)
    return made


def _database(args: GovernanceGatewayArgs, postgres: PostgresAccess) -> None:
    given = postgres.given
    if given is None:
        args["database"] = {
            "namespace": NAMESPACE_FOUNDATION,
            "pod": POSTGRES.name,
            "port": POSTGRES.port,
        }
        return
    args["database_address"] = given.address
    if given.ca is not None:
        args["database_ca"] = given.ca
    if given.max_connections is not None:
        args["database_max_connections"] = given.max_connections


def _scale(args: GovernanceGatewayArgs, scale: Scale) -> None:
    if scale.max_replicas > scale.min_replicas:
        autoscaling: AutoscalingArgs = {
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
        }
        args["autoscaling"] = autoscaling
    else:
        args["replicas"] = scale.min_replicas
    if scale.zone_spread:
        args["zone_spread"] = True
