"""The substrate stack on aws: everything below Kubernetes, and what it tells the platform stack."""

from collections.abc import Mapping
from typing import Any, cast

import pulumi
import pulumi_aws as aws

import terrace_components
from terrace_blueprints.settings import Settings
from terrace_blueprints.settings_aws import foundation_arguments
from terrace_blueprints.substrates.aws_contract import OUTPUT, VERSION
from terrace_components import FoundationAws
from terrace_components.aws.foundation_aws import FoundationAwsArgs
from terrace_components.aws.load_balancer import LoadBalancerSettings
from terrace_components.aws.node_settings import CORE_LABELS

NAME = "foundation"
HTTPS_PORT = 443
# Sandboxes come with stage 2; until then nothing is isolated, and the output says so.
ISOLATION = "none yet"


def build_aws_foundation(settings: Settings) -> FoundationAws:
    """Register everything that the settings ask for."""
    return FoundationAws(NAME, cast(FoundationAwsArgs, foundation_arguments(settings.aws)))


def export_aws_foundation(settings: Settings, foundation: FoundationAws) -> None:
    """The output for the platform stack, and addresses for people. No secret in either."""
    caller = aws.get_caller_identity_output()
    cluster = foundation.cluster
    urls = foundation.repository_urls
    identifier = pulumi.Output.concat(
        cluster.name, ".", str(settings.region), ".", caller.account_id
    )
    told: dict[str, Any] = {
        "version": VERSION,
        "account": caller.account_id,
        "partition": aws.get_partition_output().partition,
        "region": settings.region,
        "vpc_id": foundation.network.vpc_id,
        "vpc_cidr": foundation.network.cidr,
        "cluster": {
            "name": cluster.name,
            "kubeconfig": cluster.kubeconfig,
            "identifier": identifier,
            # On somebody's own cluster an object of our name may be theirs.
            "belongs_to_stack": "existing" not in settings.aws["cluster"],
            "api": {"cidr": cluster.api_address.apply(lambda a: f"{a}/32"), "port": HTTPS_PORT},
        },
        "postgres": {
            "host": foundation.database.host,
            "port": foundation.database.port,
            "master_secret_arn": foundation.database.master_secret_arn,
            "master_secret_key_arn": foundation.database.master_secret_key_arn,
            "max_connections": foundation.database.max_connections,
        },
        "objects": {
            "bucket": foundation.objects.name,
            "key_arn": _key(foundation, "objects"),
            "object_lock": _object_lock(settings),
        },
        "registry": urls,
        "logs_key_arn": _key(foundation, "logs"),
        "captures_key_arn": _key(foundation, "captures"),
        "node_selector": _core_labels(settings),
        "tags": settings.aws.get("tags", {}),
        "isolation": ISOLATION,
    }
    load_balancer = foundation.load_balancer
    if load_balancer is not None:
        told["load_balancer"] = {
            "url": load_balancer.url,
            "target_group_arn": load_balancer.target_group_arn,
            "security_group_id": load_balancer.security_group_id,
            "deregistration_delay_seconds": _deregistration_delay(settings),
        }
    pulumi.export("stage", settings.stage)
    pulumi.export(OUTPUT, told)
    # For people, and flat: what `pulumi stack output NAME` can print.
    pulumi.export("cluster_name", cluster.name)
    pulumi.export("vpc_id", foundation.network.vpc_id)
    pulumi.export("registry", urls)
    pulumi.export("bucket", foundation.objects.name)
    pulumi.export("database_host", foundation.database.host)
    pulumi.export(
        "next_steps",
        [
            urls.apply(lambda found: _push(str(settings.region), found)),
            cluster.name.apply(
                lambda name: f"aws eks update-kubeconfig --region {settings.region} --name {name}"
            ),
            f"pulumi up --stack {pulumi.get_stack()}-platform",
        ],
    )


def _push(region: str, urls: Mapping[str, str]) -> str:
    """How the images come to where the platform looks for them."""
    tagged = ", ".join(f"{url}:{terrace_components.VERSION}" for url in sorted(urls.values()))
    hosts = sorted({url.partition("/")[0] for url in urls.values()})
    login = [
        f"aws ecr get-login-password --region {region} | docker login --username AWS "
        f"--password-stdin {host}"
        for host in hosts
    ]
    return "; ".join([*login, f"then push {tagged}"])


def _key(foundation: FoundationAws, purpose: str) -> pulumi.Output[str | None] | None:
    """ARN of the KMS key for a purpose; none where nothing is encrypted for it."""
    if foundation.keys is None:
        return None
    return foundation.keys.arns.apply(lambda arns: arns.get(purpose))


def _object_lock(settings: Settings) -> bool | None:
    objects = foundation_arguments(settings.aws).get("objects", {})
    return None if "existing" in objects else "object_lock_days" in objects


def _deregistration_delay(settings: Settings) -> int:
    key = "deregistration_delay_seconds"
    given = foundation_arguments(settings.aws)["load_balancer"]
    return int(given.get(key, LoadBalancerSettings.model_fields[key].default))


def _core_labels(settings: Settings) -> dict[str, str]:
    """Labels of the nodes that this stack makes; none when somebody else made them."""
    given = foundation_arguments(settings.aws)
    if "nodes" not in given and "existing" in given["cluster"]:
        return {}
    return given.get("nodes", {}).get("labels", CORE_LABELS)
