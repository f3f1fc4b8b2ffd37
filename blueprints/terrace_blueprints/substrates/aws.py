"""Amazon EKS. The cluster and all it needs of AWS are made by the substrate stack; this is what the
platform stack makes of its output."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

import terrace_components
from terrace_blueprints.settings import Settings
from terrace_blueprints.substrates.aws_contract import VERSION, AwsSubstrateOutput
from terrace_blueprints.substrates.contract import (
    Admission,
    Anchors,
    CaptureKey,
    ClusterAccess,
    Exposure,
    GivenPostgres,
    Identity,
    Images,
    InvocationLogs,
    LoadBalancer,
    ObjectStore,
    PodIdentity,
    PostgresAccess,
    ProviderCredential,
    Scale,
    Sizes,
    Substrate,
    SubstrateError,
)
from terrace_components.arguments import AddressArgs

MAX_REPLICAS = 6
KEEP_ALIVE_SECONDS = 4100  # the longest idle timeout of an ALB is 4000
DEREGISTRATION_SECONDS = 30  # the controller sees the pod go, the ALB takes it out
DRAIN_LIMIT_SECONDS = 900  # of an update of managed nodes, which fails then
CONTROLLER_CHART = "3.4.2"
CONTROLLER_IMAGE = "load-balancer-controller"

# LiteLLM's own floor is one CPU and 4 GiB per worker; the guard is our own measurement.
SIZES = Sizes(
    guard={"cpu": "250m", "memory": "256Mi", "memory_limit": "512Mi"},
    translator={"cpu": "1", "memory": "4Gi", "memory_limit": "4Gi"},
    postgres={"cpu": "250m", "memory": "512Mi", "memory_limit": "1Gi"},
    prometheus={"cpu": "100m", "memory": "512Mi", "memory_limit": "1Gi"},
    model_simulator={"cpu": "50m", "memory": "64Mi", "memory_limit": "256Mi"},
    postgres_storage="20Gi",
    bill_storage="1Gi",
    spool_storage="2Gi",
)
CORE_TOLERATIONS: list[dict[str, Any]] = [{"key": "CriticalAddonsOnly", "operator": "Exists"}]


def aws_substrate(
    output: Mapping[str, Any], settings: Settings, *, stack: str, database_ca: str | None
) -> Substrate:
    """The contract, out of the output of the substrate stack named ``stack``.

    Raises ``SubstrateError`` when the output is not of this release, or is another region's.
    """
    told = _parsed(output, stack)
    if told.region != settings.region:
        raise SubstrateError(
            f"aws:region: is {settings.region}, but stack {stack!r} stands in {told.region}"
        )
    endpoint: AddressArgs = {"cidr": told.vpc_cidr, "port": 443}
    return Substrate(
        name="aws",
        cluster=ClusterAccess(
            kubeconfig=told.cluster.kubeconfig,
            identifier=told.cluster.identifier,
            api={"cidr": told.cluster.api.cidr, "port": told.cluster.api.port},
            belongs_to_stack=told.cluster.belongs_to_stack,
            drain_limit_seconds=DRAIN_LIMIT_SECONDS,
        ),
        postgres=PostgresAccess(
            given=GivenPostgres(
                host=told.postgres.host,
                # A failover gives the name another address of the same network.
                address={"cidr": told.vpc_cidr, "port": told.postgres.port},
                ca=database_ca,
                max_connections=told.postgres.max_connections,
                admin_secret_arn=told.postgres.master_secret_arn,
                admin_key_arns=tuple(filter(None, [told.postgres.master_secret_key_arn])),
            )
        ),
        objects=ObjectStore(ebs=True),
        identity=Identity(
            credentials=provider_credentials(settings),
            pod_identity=PodIdentity(cluster_name=told.cluster.name, tags=told.tags),
        ),
        images=Images(
            {
                name: f"{repository}:{terrace_components.VERSION}"
                for name, repository in told.registry.items()
            }
            | settings.images
        ),
        exposure=Exposure(load_balancer=_load_balancer(told, settings)),
        scheduling={"core": {"node_selector": told.node_selector, "tolerations": CORE_TOLERATIONS}},
        sizes=SIZES,
        gateway=Scale(
            min_replicas=settings.gateway.min_replicas,
            max_replicas=settings.gateway.max_replicas
            or max(MAX_REPLICAS, settings.gateway.min_replicas),
            zone_spread=True,
        ),
        scrape_interval_seconds=15,
        isolation=told.isolation,
        simulates_providers=False,
        private_endpoints=(endpoint,),
        invocation_logs=_invocation_logs(told, settings),
        capture_key=_capture_key(told, settings),
        anchors=_anchors(told, settings, stack),
        admission=Admission(immutable_images=immutable_images(settings)),
        next_steps=next_steps(
            f"aws eks update-kubeconfig --region {told.region} --name {told.cluster.name}"
        ),
    )


def provider_credentials(settings: Settings) -> tuple[ProviderCredential, ...]:
    """The keys of third-party providers that the stack's settings name."""
    made: list[ProviderCredential] = []
    for variable, secret in sorted(settings.provider_secrets.items()):
        key = variable.lower().replace("_", "-")
        if secret.arn is not None:
            recipe: dict[str, Any] = {"arn": secret.arn}
            if secret.json_key is not None:
                recipe["json_key"] = secret.json_key
            made.append(
                ProviderCredential(
                    variable,
                    key,
                    {"secrets_manager": recipe},
                    secret_arn=secret.arn,
                    key_arn=secret.key_arn,
                )
            )
        else:
            source = f"{secret.secret}/{secret.key}"
            made.append(ProviderCredential(variable, key, {"copy": source}, source=source))
    return tuple(made)


def immutable_images(settings: Settings) -> tuple[str, ...]:
    """Repositories (with the colon) whose tags never move, as the settings say by naming one."""
    return tuple(
        sorted(
            f"{reference.rpartition(':')[0]}:"
            for reference in settings.images.values()
            if "@" not in reference
        )
    )


def next_steps(*first: str) -> tuple[str, ...]:
    """What a person types after `pulumi up`: the admin key, and the admin API on this machine."""
    return (
        *first,
        "kubectl -n terrace-gateway get secret gateway-secrets "
        "-o jsonpath='{.data.admin-key}' | base64 -d",
        "kubectl -n terrace-gateway port-forward service/gateway-admin 8081:8081",
    )


def _parsed(output: Mapping[str, Any], stack: str) -> AwsSubstrateOutput:
    again = f"run `pulumi up --stack {stack}` with this release first"
    if output.get("version") != VERSION:
        raise SubstrateError(
            f"output 'substrate' of stack {stack!r} has version {output.get('version')!r}, this "
            f"release reads {VERSION}: {again}"
        )
    try:
        return AwsSubstrateOutput.model_validate(output)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    raise SubstrateError(f"output 'substrate' of stack {stack!r}: {where}: {first['msg']}: {again}")


def _load_balancer(told: AwsSubstrateOutput, settings: Settings) -> LoadBalancer | None:
    if told.load_balancer is None:
        return None
    return LoadBalancer(
        url=told.load_balancer.url,
        target_group_arn=told.load_balancer.target_group_arn,
        security_group_id=told.load_balancer.security_group_id,
        vpc_id=told.vpc_id,
        region=told.region,
        keep_alive_seconds=KEEP_ALIVE_SECONDS,
        deregistration_seconds=DEREGISTRATION_SECONDS,
        deregistration_delay_seconds=told.load_balancer.deregistration_delay_seconds,
        controller_chart=CONTROLLER_CHART,
        controller_image=settings.images.get(CONTROLLER_IMAGE),
    )


def _invocation_logs(told: AwsSubstrateOutput, settings: Settings) -> InvocationLogs | None:
    asked = settings.bedrock_invocation_logs
    if asked is None:
        return None
    return InvocationLogs(
        retention_days=asked.log_retention_days,
        capture_content=asked.capture_content,
        key_arn=told.logs_key_arn,
        tags=told.tags,
    )


def _capture_key(told: AwsSubstrateOutput, settings: Settings) -> CaptureKey | None:
    arn = settings.gateway.capture_key_arn or told.captures_key_arn
    earlier = settings.gateway.earlier_capture_key_arns
    if arn is None:
        if earlier:
            raise SubstrateError(
                "terrace:gateway.earlierCaptureKeyArns: needs a key that seals now: set "
                "terrace:gateway.captureKeyArn, or terrace:aws.keys.captures of the substrate stack"
            )
        return None
    _of_the_partition("captureKeyArn", arn, told)
    for key in earlier:
        _of_the_partition("earlierCaptureKeyArns", key, told)
    return CaptureKey(arn, tuple(key for key in dict.fromkeys(earlier) if key != arn))


def _anchors(told: AwsSubstrateOutput, settings: Settings, stack: str) -> Anchors | None:
    asked = settings.gateway.anchors
    if asked is None:
        return None
    own = asked.bucket in {None, told.objects.bucket}
    if own and asked.retention_days is not None and told.objects.object_lock is False:
        raise SubstrateError(
            "terrace:gateway.anchors.retentionDays: the bucket of stack "
            f"{stack!r} has no Object Lock: set terrace:aws.objects.objectLockDays there, which "
            "makes another bucket, or name one that has it (anchors.bucket)"
        )
    if asked.key_arn is not None:
        _of_the_partition("anchors.keyArn", asked.key_arn, told)
    return Anchors(
        bucket=asked.bucket or told.objects.bucket,
        key_arn=asked.key_arn or (told.objects.key_arn if own else None),
        retention_days=asked.retention_days,
    )


def _of_the_partition(key: str, arn: str, told: AwsSubstrateOutput) -> None:
    given = arn.split(":")[1]
    if given != told.partition:
        raise SubstrateError(
            f"terrace:gateway.{key}: {arn} is of partition {given}, and the account of "
            f"{told.partition}"
        )
