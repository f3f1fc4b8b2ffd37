"""The gateway where the database is managed, and where the cluster has zones and a load."""

from collections.abc import Callable
from typing import Any

import yaml

from terrace_components import GovernanceGateway

SPEC = """
version: 1
price_version: "1"
providers: [{name: p, kind: bedrock, region: eu-west-1, credentials: ambient}]
models:
  - name: one
    provider: p
    upstream_model: eu.anthropic.claude-sonnet-4-5-20250929-v1:0
    context_tokens: 100
    max_output_tokens: 10
    price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 1}
"""
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
AGENT = [
    {
        "to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}],
        "ports": [{"port": 80, "protocol": "TCP"}],
    },
    {"to": [{"ipBlock": {"cidr": "fd00:ec2::23/128"}}], "ports": [{"port": 80, "protocol": "TCP"}]},
]
DATABASE = {"cidr": "10.20.0.0/16", "port": 5432}


def gateway(**more: Any) -> Callable[[], None]:
    resources: Any = {"cpu": "1", "memory": "4Gi", "memory_limit": "4Gi"}
    args: Any = {
        "namespace": "terrace-gateway",
        "guard_image": "guard:1",
        "translator_image": "translator:1",
        "governance": SPEC,
        "guard_resources": resources,
        "translator_resources": resources,
        "database_address": DATABASE,
        **more,
    }

    def program() -> None:
        GovernanceGateway("gateway", args)

    return program


def egress(graph: Any) -> list[dict[str, Any]]:
    return graph.one("NetworkPolicy").inputs["spec"]["egress"]


def test_the_database_is_reached_at_its_addresses_only(render: Any) -> None:
    to_database = [
        rule
        for rule in egress(render(gateway()))
        if {"port": 5432, "protocol": "TCP"} in rule["ports"]
    ]
    assert to_database == [
        {
            "to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}],
            "ports": [{"port": 5432, "protocol": "TCP"}],
        }
    ]


def test_the_agent_of_pod_identity_is_reached_when_asked_and_only_then(render: Any) -> None:
    plain, asked = egress(render(gateway())), egress(render(gateway(pod_identity=True)))
    assert [rule for rule in asked if rule not in plain] == AGENT
    assert [rule for rule in plain if rule not in asked] == []


def test_pods_wait_until_the_service_account_is_given_its_identity(render: Any) -> None:
    """EKS sees a new association some seconds late, and gives it to pods that it creates only."""
    graph = render(gateway(pod_identity=True))
    job, deployment = graph.one("Job"), graph.one("StatefulSet")
    assert job.name in graph.needs(deployment)
    assert job.pod["serviceAccountName"] == deployment.pod["serviceAccountName"]
    assert job.pod["restartPolicy"] == "Never"  # a restarted container has the old environment
    [check] = job.pod["containers"]
    assert check["command"][-1] == "terrace_translator.pod_identity"
    [translator] = deployment.pod["initContainers"]
    assert check["image"] == translator["image"]
    # No Service, budget or policy of the gateway's takes the check for one of its pods.
    labels = job.inputs["spec"]["template"]["metadata"]["labels"]
    for service in graph.of("Service"):
        assert not service.inputs["spec"]["selector"].items() <= labels.items()


def test_a_pod_without_the_identity_does_not_start(render: Any) -> None:
    [translator] = render(gateway(pod_identity=True)).one("StatefulSet").pod["initContainers"]
    assert {"name": "TERRACE_POD_IDENTITY", "value": "true"} in translator["env"]


def test_without_pod_identity_nothing_waits_for_one(render: Any) -> None:
    graph = render(gateway())
    assert not graph.of("Job")
    [translator] = graph.one("StatefulSet").pod["initContainers"]
    assert [entry["name"] for entry in translator["env"]] == ["HOME"]


def test_the_services_are_there_before_the_pods(render: Any) -> None:
    """A readiness gate is given to a pod whose Service is there already."""
    graph = render(gateway())
    needed = graph.needs(graph.one("StatefulSet"))
    assert {service.name for service in graph.of("Service")} <= needed


def test_no_other_link_local_address_is_open(render: Any) -> None:
    """The instance's own credentials (169.254.169.254) stay out of reach."""
    ranges = [
        peer["ipBlock"]["cidr"]
        for rule in egress(render(gateway(pod_identity=True)))
        for peer in rule["to"]
        if "ipBlock" in peer
    ]
    assert {r for r in ranges if r.startswith(("169.254.", "fd00:"))} == {
        "169.254.170.23/32",
        "fd00:ec2::23/128",
    }


def test_ambient_credentials_put_no_key_into_pod_or_config(render: Any) -> None:
    graph = render(gateway(pod_identity=True))
    [translator] = graph.one("StatefulSet").pod["initContainers"]
    assert [entry["name"] for entry in translator["env"]] == ["HOME", "TERRACE_POD_IDENTITY"]
    [config] = [
        yaml.safe_load(r.inputs["data"]["translator.yaml"])
        for r in graph.of("ConfigMap")
        if "translator.yaml" in r.inputs["data"]
    ]
    [entry] = config["model_list"]
    assert {k: v for k, v in entry["litellm_params"].items() if k.startswith(("aws", "model"))} == {
        "model": "bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "aws_region_name": "eu-west-1",
    }


def test_the_guard_has_the_certificates_of_the_database(render: Any) -> None:
    graph = render(gateway(database_ca=CERTIFICATE))
    deployment = graph.one("StatefulSet")
    [guard] = deployment.pod["containers"]
    [mount] = [m for m in guard["volumeMounts"] if m["name"] == "database-ca"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/terrace-database", True)
    [translator] = deployment.pod["initContainers"]
    assert "database-ca" not in {m["name"] for m in translator["volumeMounts"]}
    [volume] = [v for v in deployment.pod["volumes"] if v["name"] == "database-ca"]
    [config_map] = [r for r in graph.of("ConfigMap") if "ca.pem" in r.inputs["data"]]
    assert volume["configMap"]["name"] == config_map.inputs["metadata"]["name"]
    assert config_map.inputs["data"]["ca.pem"] == CERTIFICATE


def test_pods_of_one_version_are_spread_over_zones_when_asked(render: Any) -> None:
    plain = render(gateway()).one("StatefulSet").pod["topologySpreadConstraints"]
    assert [c["topologyKey"] for c in plain] == ["kubernetes.io/hostname"]
    spread = render(gateway(zone_spread=True)).one("StatefulSet").pod["topologySpreadConstraints"]
    assert spread[:1] == plain
    [zones] = spread[1:]
    assert (zones["topologyKey"], zones["maxSkew"]) == ("topology.kubernetes.io/zone", 1)
    assert zones["matchLabelKeys"] == ["controller-revision-hash"]


def test_the_autoscaler_owns_the_number_of_pods(render: Any) -> None:
    graph = render(gateway(autoscaling={"min_replicas": 3, "max_replicas": 12}))
    deployment = graph.one("StatefulSet")
    # The first number is ours, each later one the autoscaler's.
    assert deployment.inputs["spec"]["replicas"] == 3
    assert deployment.options["ignoreChanges"] == ["spec.replicas"]
    spec = graph.one("HorizontalPodAutoscaler").inputs["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": deployment.inputs["metadata"]["name"],
    }
    assert (spec["minReplicas"], spec["maxReplicas"]) == (3, 12)
    [metric] = spec["metrics"]
    assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": 60}
    assert graph.of("PodDisruptionBudget")


def test_a_fixed_number_is_pulumis_own(render: Any) -> None:
    graph = render(gateway(replicas=4))
    assert not graph.of("HorizontalPodAutoscaler")
    assert "ignoreChanges" not in graph.one("StatefulSet").options


def test_pods_leave_slowly_and_come_quickly(render: Any) -> None:
    graph = render(gateway(autoscaling={"min_replicas": 2, "max_replicas": 4, "cpu_percent": 70}))
    spec = graph.one("HorizontalPodAutoscaler").inputs["spec"]
    down, up = spec["behavior"]["scaleDown"], spec["behavior"]["scaleUp"]
    assert spec["metrics"][0]["resource"]["target"]["averageUtilization"] == 70
    assert up["stabilizationWindowSeconds"] == 0
    assert up["selectPolicy"] == "Max"
    assert down["stabilizationWindowSeconds"] >= 300
    [policy] = down["policies"]
    assert (policy["type"], policy["value"]) == ("Pods", 1)
    assert policy["periodSeconds"] >= 300


def test_one_pod_at_least_has_no_budget(render: Any) -> None:
    graph = render(gateway(autoscaling={"min_replicas": 1, "max_replicas": 4}))
    assert not graph.of("PodDisruptionBudget")


def test_behind_a_load_balancer_connections_outlive_its_own(render: Any) -> None:
    def guard(**more: Any) -> tuple[dict[str, str], int]:
        pod = render(gateway(**more)).one("StatefulSet").pod
        [container] = pod["containers"]
        values = {e["name"]: e.get("value", "") for e in container["env"]}
        return values, pod["terminationGracePeriodSeconds"]

    plain, grace = guard()
    assert "TERRACE_KEEP_ALIVE_SECONDS" not in plain
    asked, longer = guard(keep_alive_seconds=4100, drain_delay_seconds=30)
    assert asked["TERRACE_KEEP_ALIVE_SECONDS"] == "4100"
    assert asked["TERRACE_DRAIN_DELAY_SECONDS"] == "30"
    assert longer - grace == 30 - int(plain["TERRACE_DRAIN_DELAY_SECONDS"])


def test_what_the_database_takes_is_told_to_policies_and_rolls_no_pod(render: Any) -> None:
    plain = render(gateway()).one("StatefulSet")
    told = render(gateway(database_max_connections=500)).one("StatefulSet")
    assert "annotations" not in plain.inputs["metadata"]
    assert told.inputs["metadata"]["annotations"] == {"terrace.dev/database-max-connections": "500"}
    assert told.inputs["spec"] == plain.inputs["spec"]
