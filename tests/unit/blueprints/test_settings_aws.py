"""Settings of the two stacks on aws."""

from copy import deepcopy
from typing import Any, NotRequired, TypedDict

import pulumi
import pytest

from terrace_blueprints.settings import Settings, SettingsError, load_settings
from terrace_blueprints.settings_aws import (
    REPOSITORIES,
    RESERVE,
    as_settings,
    foundation_arguments,
)
from terrace_blueprints.spelling import SpellingError, argument_names, arguments, camel_case
from terrace_blueprints.substrates.aws import SIZES
from terrace_components.aws.node_settings import Reserve
from terrace_components.aws.quantities import mebibytes, millicores

FILE = "Pulumi.prod.yaml"
CLUSTER = {"apiAccessCidrs": ["203.0.113.0/24"]}
SUBSTRATE: dict[str, Any] = {
    "aws:region": "eu-west-1",
    "terrace:substrate": "aws",
    "terrace:part": "substrate",
    "terrace:aws": {"cluster": CLUSTER},
}
PLATFORM: dict[str, Any] = {
    "aws:region": "us-east-1",
    "terrace:substrate": "aws",
    "terrace:part": "platform",
}
NETWORK = {
    "vpcId": "vpc-0123456789abcdef0",
    "privateSubnetIds": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
}
SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:openai-AbCdEf"


def load(base: dict[str, Any], **changes: Any) -> Settings:
    """``base`` with changes of keys of ``terrace`` (``None``: without that key)."""
    given = deepcopy(base) | {f"terrace:{key}": value for key, value in changes.items()}
    return load_settings({k: v for k, v in given.items() if v is not None}, FILE)


def refused(base: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        load(base, **changes)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{FILE}: ")
    return message.removeprefix(f"{FILE}: ")


def with_aws(**sections: Any) -> str:
    return refused(SUBSTRATE, aws={"cluster": CLUSTER} | sections)


# --- the substrate ---


def test_sections_become_arguments_of_the_foundation() -> None:
    settings = load(
        SUBSTRATE,
        aws={
            "cluster": CLUSTER,
            "network": {"zoneCount": 2, "nat": "shared"},
            "certificate": {"domain": "g.example.com", "zone": {"id": "Z0123456789ABC"}},
            "loadBalancer": {"allowedCidrs": ["10.0.0.0/8"], "idleTimeoutSeconds": 900},
            "tags": {"costCenter": "4711"},
        },
    )
    made = foundation_arguments(settings.aws)
    assert made["cluster"] == {"api_access_cidrs": ["203.0.113.0/24"]}
    assert made["network"] == {"zone_count": 2, "nat": "shared"}
    assert made["tags"] == {"costCenter": "4711"}  # keys that are data are left as they are
    assert made["load_balancer"] == {
        "allowed_cidrs": ["10.0.0.0/8"],
        "idle_timeout_seconds": 900,
        "target_port": 8080,
        "health_path": "/readyz",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [("targetPort", 9000), ("healthPort", 9090), ("healthPath", "/"), ("targetPort", 8080)],
)
def test_what_the_platform_fixes_of_the_load_balancer_is_not_a_setting(
    key: str, value: Any
) -> None:
    message = with_aws(
        certificate={"domain": "g.example.com", "zone": {"id": "Z0123456789ABC"}},
        loadBalancer={"allowedCidrs": ["10.0.0.0/8"], key: value},
    )
    assert message == (
        f"terrace:aws.loadBalancer.{key}: cannot be set: the gateway answers at port 8080 and its "
        "health at /readyz"
    )


def test_the_platforms_images_have_repositories() -> None:
    made = foundation_arguments(load(SUBSTRATE).aws)
    assert made["registry"] == {"repositories": [*REPOSITORIES]}
    mine = {"cluster": CLUSTER, "registry": {"repositories": ["gateway"], "keepImages": 5}}
    made = foundation_arguments(load(SUBSTRATE, aws=mine).aws)
    assert made["registry"] == {"repositories": ["gateway"], "keep_images": 5}


def test_a_section_may_arrive_as_json_text() -> None:
    assert load(SUBSTRATE, aws='{"cluster": {"apiAccessCidrs": ["203.0.113.0/24"]}}') == load(
        SUBSTRATE
    )
    assert refused(SUBSTRATE, aws="yes") == "terrace:aws: must be a YAML mapping"


def test_what_is_required_is_named() -> None:
    assert refused(SUBSTRATE, aws=None).startswith("terrace:aws.cluster: is required")
    assert "terrace:aws.cluster.apiAccessCidrs: must name at least one range" in refused(
        SUBSTRATE, aws={"cluster": {}}
    )


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"netwrk": {}}, "terrace:aws.netwrk: unknown key; did you mean network? Valid here: "),
        ({"network": {"zone_count": 3}}, "terrace:aws.network.zone_count: unknown key; did you me"),
        ({"network": {"zonecount": 3}}, "did you mean zoneCount?"),
        ({"network": 3}, "terrace:aws.network: must be a mapping with keys among: "),
        ({"network": {"zoneCount": 1}}, "terrace:aws.network.zoneCount: "),
        ({"network": {"cidr": "8.8.0.0/16"}}, "terrace:aws.network.cidr: "),
        ({"network": {"nat": "one"}}, "terrace:aws.network.nat: "),
        ({"nodes": {"instanceTypes": ["t3.small"], "minSize": 1}}, "terrace:aws.nodes."),
        ({"database": {"minCapacity": 4, "maxCapacity": 2}}, "terrace:aws.database.maxCapacity: "),
        ({"loadBalancer": {"allowedCidrs": ["10.0.0.0/8"]}}, "terrace:aws.loadBalancer.domain: is"),
        ({"certificate": {"domain": "x.example.com", "zoen": {}}}, "terrace:aws.certificate.zoen"),
        ({"certificate": {"domain": "x.example.com", "zone": {"ID": "Z1"}}}, "aws.certificate.zon"),
    ],
)
def test_what_is_wrong_is_named_as_the_file_spells_it(sections: dict[str, Any], said: str) -> None:
    assert said in with_aws(**sections)


def test_words_of_a_component_are_respelled() -> None:
    message = with_aws(network={"zones": ["eu-west-1a", "eu-west-1b"], "zoneCount": 2})
    assert message.startswith("terrace:aws.network.zoneCount: cannot be given beside zones")
    message = with_aws(database={"deletionProtection": True, "finalSnapshot": False})
    assert message.startswith("terrace:aws.database.finalSnapshot: ")
    assert "deletionProtection: false" in message
    assert "_" not in message


def test_reserve_is_what_the_platform_and_the_cluster_ask_for() -> None:
    """The cluster's own pods, and stage 1 with one pod more of the gateway while it is replaced."""
    cluster = Reserve().room
    pod = [SIZES.guard, SIZES.translator]
    once = [*pod, *pod, *pod, SIZES.prometheus, {"cpu": "100m", "memory": "128Mi"}]
    reserve = Reserve.of(RESERVE).room
    assert reserve.millicores == cluster.millicores + sum(millicores(s["cpu"]) for s in once)
    assert reserve.memory_mib == cluster.memory_mib + sum(mebibytes(s["memory"]) for s in once)
    assert reserve.pods == cluster.pods + 5


@pytest.mark.parametrize(
    "nodes",
    [
        {"minSize": 1},
        {"minSize": 2},
        {"instanceTypes": ["m7i.large"]},
        {"instanceTypes": ["m7i.xlarge", "c7i.xlarge"], "minSize": 2},
    ],
)
def test_nodes_that_cannot_hold_stage_1_without_one_are_refused(nodes: dict[str, Any]) -> None:
    message = with_aws(nodes=nodes)
    assert message.startswith("terrace:aws.nodes.reserve: does not fit: ")
    assert f"It is {Reserve.of(RESERVE).room}; they have " in message
    assert "What would fit: minSize " in message


def test_nodes_of_the_committed_size_hold_it_and_a_smaller_reserve_can_be_said() -> None:
    load(SUBSTRATE, aws={"cluster": CLUSTER})
    nodes = {"minSize": 2, "reserve": {"memory": "8Gi", "cpu": "3"}}
    made = foundation_arguments({"cluster": CLUSTER, "nodes": nodes})
    assert made["nodes"]["reserve"] == {"cpu": "3", "memory": "8Gi", "pods": RESERVE["pods"]}
    existing = {"cluster": {"existing": {"name": "theirs"}}}
    existing["network"] = {"existing": NETWORK}
    assert "nodes" not in foundation_arguments(existing)


def test_a_property_of_a_part_is_told_as_the_file_spells_it() -> None:
    for path, setting in (
        ("zone.id", "certificate.zone.id"),
        ("existing.private_subnet_ids", "network.existing.privateSubnetIds"),
        ("cluster.service_cidr", "cluster.serviceCidr"),
        ("pods", "network.pods"),
        ("zone_count", "network.zoneCount"),
        ("nowhere", "nowhere"),
    ):
        assert as_settings(path, "less than zone_count") == (
            f"terrace:aws.{setting}",
            "less than zoneCount",
        )


@pytest.mark.parametrize("region", [None, "us-east", "", "useast1", "US-EAST-1"])
def test_a_region_is_required_and_looks_like_one(region: str | None) -> None:
    message = refused(SUBSTRATE | {"aws:region": region})
    assert message.startswith("aws:region: ")
    assert "such as us-east-1" in message


@pytest.mark.parametrize("base", [SUBSTRATE, PLATFORM])
def test_other_keys_of_the_provider_are_left_alone(base: dict[str, Any]) -> None:
    others = {"aws:profile": "prod", "aws:allowedAccountIds": '["123456789012"]'}
    assert load(base | others) == load(base)


# --- the platform ---


def test_everything_has_a_value() -> None:
    settings = load(PLATFORM)
    assert settings.substrate_stack is None
    assert settings.images == {}
    assert (settings.gateway.min_replicas, settings.gateway.max_replicas) == (2, None)


@pytest.mark.parametrize(
    ("base", "key", "value", "place"),
    [
        (SUBSTRATE, "substrateStack", "x", "aws platform"),
        (SUBSTRATE, "images", {}, "aws platform, existing"),
        (SUBSTRATE, "gateway", {}, "aws platform, existing"),
        (SUBSTRATE, "providerSecrets", {}, "aws platform, existing"),
        (SUBSTRATE, "governanceFile", "x.yaml", "local, aws platform, existing"),
        (SUBSTRATE, "otlpEndpoint", "http://x", "local, aws platform, existing"),
        (SUBSTRATE, "databaseCaFile", "x.pem", "aws platform, existing"),
        (PLATFORM, "aws", {"cluster": CLUSTER}, "aws substrate"),
        (PLATFORM, "existing", None, ""),
        (PLATFORM, "substrateFile", "/x", "local"),
    ],
)
def test_keys_of_the_other_part_are_refused(
    base: dict[str, Any], key: str, value: Any, place: str
) -> None:
    if value is None:
        load(base, **{key: value})
        return
    message = refused(base, **{key: value})
    here = f"aws {base['terrace:part']}"
    assert message == f"terrace:{key}: belongs to {place}; this stack is {here}"


@pytest.mark.parametrize("stack", ["", "a b", "org/project/stack"])
def test_the_substrates_stack_is_one_of_this_project(stack: str) -> None:
    assert "terrace:substrateStack: must be the name of a stack" in refused(
        PLATFORM, substrateStack=stack
    )


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ({"arn": SECRET, "secret": "a/b", "key": "k"}, "must be {arn}"),
        ({"arn": SECRET, "key": "k"}, "must be {arn}"),
        ({"secret": "a/b", "key": "k"}, "must be {arn, jsonKey} on aws"),
        ({"arn": "openai"}, "OPENAI_API_KEY.arn: must be the ARN of a secret in Secrets Manager"),
        ({"arn": SECRET, "keyArn": "alias/x"}, "OPENAI_API_KEY.keyArn: must be the ARN of a KMS"),
        ({"arn": SECRET, "jsonkey": "x"}, "OPENAI_API_KEY.jsonkey: unknown key; did you mean json"),
        (SECRET, "must be a YAML mapping"),
    ],
)
def test_a_providers_key_is_in_secrets_manager(secret: Any, said: str) -> None:
    message = refused(PLATFORM, providerSecrets={"OPENAI_API_KEY": secret})
    assert message.startswith("terrace:providerSecrets.OPENAI_API_KEY")
    assert said in message


KEY = "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d"


def test_the_gateway_may_have_a_key_and_a_bucket_at_aws() -> None:
    gateway = load(PLATFORM).gateway
    assert (gateway.capture_key_arn, gateway.earlier_capture_key_arns) == (None, ())
    assert gateway.anchors is None
    given = {"captureKeyArn": KEY, "anchors": {}}
    gateway = load(PLATFORM, gateway=given).gateway
    assert gateway.capture_key_arn == KEY
    assert gateway.anchors is not None
    assert gateway.anchors.retention_days is None


@pytest.mark.parametrize(
    ("gateway", "said"),
    [
        ({"captureKeyArn": "alias/x"}, "captureKeyArn: must be the ARN of a KMS key"),
        ({"earlierCaptureKeyArns": [KEY, "x"]}, "earlierCaptureKeyArns.1: must be the ARN of a"),
        ({"anchors": {"bucket": "s3://x"}}, "anchors.bucket: must be the name of a bucket"),
        ({"anchors": {"retentionDays": 0}}, "anchors.retentionDays: "),
        ({"anchors": {"retentionDays": 3651}}, "anchors.retentionDays: "),
        ({"anchors": {"days": 1}}, "anchors.days: unknown key"),
        ({"anchors": "s3://x"}, "anchors: must be a YAML mapping"),
    ],
)
def test_a_key_or_bucket_that_cannot_be_is_refused(gateway: dict[str, Any], said: str) -> None:
    assert refused(PLATFORM, gateway=gateway).startswith(f"terrace:gateway.{said}")


# --- spelling ---


class Inner(TypedDict):
    """Nested arguments."""

    host_name: str
    free_form: NotRequired[dict[str, str]]


class Outer(TypedDict):
    """Arguments of every shape that a component has."""

    one_part: NotRequired[Inner]
    or_text: NotRequired[pulumi.Input[str]]
    maybe_part: NotRequired[Inner | None]
    many_parts: NotRequired[list[Inner]]


def test_every_shape_is_spelled() -> None:
    part = {"hostName": "a", "freeForm": {"camelCase": "kept"}}
    made = {"host_name": "a", "free_form": {"camelCase": "kept"}}
    document = {
        "onePart": part,
        "maybePart": part,
        "manyParts": [part, part],
        "orText": "aB",
    }
    assert arguments(document, Outer) == {
        "one_part": made,
        "maybe_part": made,
        "many_parts": [made, made],
        "or_text": "aB",
    }
    assert arguments({"maybePart": None}, Outer) == {"maybe_part": None}


def test_a_key_of_a_list_is_named_by_its_place() -> None:
    with pytest.raises(SpellingError) as raised:
        arguments({"manyParts": [{"hostName": "a"}, {"hostname": "b"}]}, Outer)
    assert raised.value.path == "manyParts.1.hostname"
    assert "did you mean hostName?" in str(raised.value)


def test_names_of_all_arguments() -> None:
    assert argument_names(Outer) == {
        "one_part", "or_text", "maybe_part", "many_parts", "host_name", "free_form",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("snake", "camel"),
    [("idle_timeout_seconds", "idleTimeoutSeconds"), ("nat", "nat"), ("a.b_c.2.d_e", "a.bC.2.dE")],
)
def test_camel_case(snake: str, camel: str) -> None:
    assert camel_case(snake) == camel
