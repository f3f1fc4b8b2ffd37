"""The committed stacks on aws: what the substrate makes and tells, what stands on it."""

import json
from typing import Any

import pytest
import yaml

from terrace_blueprints.settings_aws import REPOSITORIES
from terrace_components.namespace import READINESS_GATES
from terrace_secret_bootstrap.spec import parse

from ..cloud import documents
from ..stack_programs import REGION, ROOT, STACKS, refused


@pytest.mark.parametrize("stack", STACKS)
def test_the_substrates_graph_is_the_recorded_one(
    substrate: Any, snapshot: Any, stack: str
) -> None:
    snapshot(stack, substrate(stack).rows())


@pytest.mark.parametrize("stack", STACKS)
def test_a_substrates_preview_registers_the_same_resources(substrate: Any, stack: str) -> None:
    known, unknown = substrate(stack), substrate(stack, preview=True)
    assert {(r.type, r.name) for r in unknown.resources} == {
        (r.type, r.name) for r in known.resources
    }


def test_what_the_substrate_tells_is_plain_and_whole(substrate: Any) -> None:
    told = substrate("aws-stage1").outputs["substrate"]
    assert json.loads(json.dumps(told)) == told
    assert told["version"] == 1
    assert (told["account"], told["partition"], told["region"]) == ("123456789012", "aws", REGION)
    assert told["vpc_cidr"] == "10.20.0.0/16"
    assert told["cluster"]["api"] == {"cidr": "172.20.0.1/32", "port": 443}
    assert told["cluster"]["name"] in told["cluster"]["identifier"]
    assert set(told["registry"]) == set(REPOSITORIES)
    assert told["load_balancer"]["url"] == "https://gateway.example.com"
    assert told["node_selector"] == {"terrace.dev/nodes": "core"}
    assert told["postgres"]["max_connections"] > 100


def test_no_secret_is_told(substrate: Any) -> None:
    outputs = substrate("aws-stage1").outputs
    text = json.dumps({key: value for key, value in outputs.items() if key != "next_steps"})
    for word in ("password", "PRIVATE KEY", "token:", "AKIA", "client-key"):
        assert word not in text


@pytest.mark.parametrize("stack", STACKS)
def test_the_platforms_graph_is_the_recorded_one(platform: Any, snapshot: Any, stack: str) -> None:
    snapshot(f"{stack}-platform", platform(stack).rows())


@pytest.mark.parametrize("stack", STACKS)
def test_a_platforms_preview_registers_the_same_resources(platform: Any, stack: str) -> None:
    known, unknown = platform(stack), platform(stack, preview=True)
    assert {(r.type, r.name) for r in unknown.resources} == {
        (r.type, r.name) for r in known.resources
    }


def test_the_platform_names_the_stack_that_it_stands_on(platform: Any) -> None:
    [reference] = platform("aws-stage1").of("StackReference")
    assert reference.inputs["name"] == "organization/terrace/aws-stage1"


def test_the_cluster_is_known_by_a_name_that_no_token_changes(platform: Any) -> None:
    graph = platform("aws-stage1")
    provider = graph.one("kubernetes")
    assert provider.inputs["clusterIdentifier"].endswith(f".{REGION}.123456789012")
    # Our own substrate made it: what is there under our names was left by a killed update.
    assert provider.inputs["upsertExistingObjects"] in {"true", True}
    kubeconfig = json.loads(provider.inputs["kubeconfig"])
    assert kubeconfig["users"][0]["user"]["exec"]["command"] == "aws"


def test_the_gateway_reaches_its_database_and_no_other_private_port(platform: Any) -> None:
    policy = platform("aws-stage1").one("NetworkPolicy", "terrace-gateway/gateway")
    private = [
        (rule["to"][0]["ipBlock"]["cidr"], [p["port"] for p in rule["ports"]])
        for rule in policy.inputs["spec"]["egress"]
        if "ipBlock" in rule["to"][0] and rule["to"][0]["ipBlock"]["cidr"] != "0.0.0.0/0"
    ]
    assert sorted(private) == [
        ("10.20.0.0/16", [443]),
        ("10.20.0.0/16", [5432]),
        ("169.254.170.23/32", [80]),  # the Pod Identity agent of the node
        ("fd00:ec2::23/128", [80]),
    ]


def test_the_gateway_has_what_litellm_asks_for_and_grows_for_cpu(platform: Any) -> None:
    graph = platform("aws-stage1")
    deployment = graph.one("StatefulSet", "terrace-gateway/gateway")
    [translator] = [c for c in deployment.containers if c["name"] == "translator"]
    assert translator["resources"]["requests"] == {"cpu": "1", "memory": "4Gi"}
    assert translator["resources"]["limits"] == {"memory": "4Gi"}
    assert deployment.options["ignoreChanges"] == ["spec.replicas"]  # the autoscaler's to say
    spec = graph.one("HorizontalPodAutoscaler").inputs["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    keys = {c["topologyKey"] for c in deployment.pod["topologySpreadConstraints"]}
    assert "topology.kubernetes.io/zone" in keys
    assert deployment.pod["nodeSelector"] == {"terrace.dev/nodes": "core"}


def test_images_are_the_registrys_at_this_release(platform: Any) -> None:
    used = {c["image"] for pod in platform("aws-stage1").pods() for c in pod.containers}
    assert used
    for image in used:
        assert image.endswith(":0.1.0"), image
        assert f".dkr.ecr.{REGION}.amazonaws.com/" in image


def test_a_named_image_takes_the_place_of_the_registrys(platform: Any) -> None:
    mine = "registry.example.com/gateway@sha256:" + "0" * 64
    graph = platform("aws-stage1", images={"gateway": mine})
    [guard] = graph.one("StatefulSet", "terrace-gateway/gateway").pod["containers"]
    assert guard["image"] == mine


def test_bedrock_is_allowed_for_the_catalogues_models_only(platform: Any) -> None:
    graph = platform("aws-stage1")
    statements = [s for d in documents(graph) for s in d["Statement"]]
    bedrock = [s for s in statements if any("bedrock:Invoke" in a for a in _list(s["Action"]))]
    resources = [r for s in bedrock for r in _list(s["Resource"])]
    assert resources
    assert all("*" not in resource.split(":", 5)[5] for resource in resources)
    assert any("claude-sonnet-4-5" in resource for resource in resources)
    assert not any("opus" in resource for resource in resources)


def test_pods_wait_for_the_identity_that_they_start_with(platform: Any) -> None:
    graph = platform("aws-stage1")
    parents = {r.name: r.parent for r in graph.resources}
    identities = {
        r.inputs["serviceAccount"]: {r.parent, parents[r.parent]}
        for r in graph.of("PodIdentityAssociation")
    }
    workloads = {
        "gateway": graph.one("StatefulSet", "terrace-gateway/gateway"),
        "database-role": graph.one("Job", "terrace-foundation/database-role"),
    }
    for account, workload in workloads.items():
        assert identities[account] & graph.needs(workload), account


def test_one_job_reads_the_master_secret_and_no_state_has_it(platform: Any) -> None:
    graph = platform("aws-stage1")
    told = json.dumps(graph.rows())
    readers = [d for d in documents(graph) if "secretsmanager:GetSecretValue" in json.dumps(d)]
    assert len(readers) == 1
    assert "rds!" in json.dumps(readers)
    assert not graph.of("Secret")
    assert "postgresql://gateway:{" in told


def test_keys_of_third_parties_are_read_from_secrets_manager(platform: Any) -> None:
    arn = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:openai-AbCdEf"
    graph = platform(
        "aws-stage1", providerSecrets={"OPENAI_API_KEY": {"arn": arn, "jsonKey": "key"}}
    )
    job = graph.one("Job", "terrace-foundation/secret-bootstrap")
    [spec] = [e["value"] for e in job.pod["containers"][0]["env"] if e["name"] == "SECRETS_SPEC"]
    assert parse(spec)
    assert {"openai-api-key": {"secrets_manager": {"arn": arn, "json_key": "key"}}} in [
        s["data"] for s in json.loads(spec)
    ]
    assert any(arn in json.dumps(d) for d in documents(graph))
    deployment = graph.one("StatefulSet", "terrace-gateway/gateway")
    [translator] = [c for c in deployment.containers if c["name"] == "translator"]
    assert {
        "name": "OPENAI_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "provider-credentials", "key": "openai-api-key"}},
    } in translator["env"]


def test_the_binding_goes_before_its_controller_and_namespaces_last(platform: Any) -> None:
    graph = platform("aws-stage1")
    [binding] = [r for r in graph.of("TargetGroupBinding") if r.custom]
    needed = graph.needs(binding)
    [release] = graph.of("Release")
    assert release.parent in needed or release.name in needed
    for namespace in graph.of("Namespace"):
        for workload in graph.pods():
            if workload.inputs["metadata"]["namespace"] == namespace.inputs["metadata"]["name"]:
                assert namespace.name in graph.needs(workload)


def test_pods_are_ready_when_the_load_balancer_says_so(platform: Any) -> None:
    graph = platform("aws-stage1")
    gated = {
        namespace.inputs["metadata"]["name"]
        for namespace in graph.of("Namespace")
        if READINESS_GATES in namespace.inputs["metadata"]["labels"]
    }
    assert gated == {"terrace-gateway"}
    deployment = graph.one("StatefulSet", "terrace-gateway/gateway")
    [binding] = [r for r in graph.of("TargetGroupBinding") if r.custom]
    assert {binding.name, binding.parent} & graph.needs(deployment)
    without = platform("aws-stage1", told={"load_balancer": None})
    for namespace in without.of("Namespace"):
        assert READINESS_GATES not in namespace.inputs["metadata"]["labels"]


def test_a_catalogue_without_ambient_credentials_waits_for_no_identity(
    platform: Any, governance_with: Any
) -> None:
    graph = platform(
        "aws-stage1", governanceFile=governance_with("credentials: ambient", "credentials: keys")
    )
    assert not [r for r in graph.of("Job") if r.inputs["metadata"]["name"] == "gateway-identity"]
    [translator] = [
        c
        for c in graph.one("StatefulSet", "terrace-gateway/gateway").containers
        if c["name"] == "translator"
    ]
    assert "TERRACE_POD_IDENTITY" not in {e["name"] for e in translator["env"]}


def test_a_stream_that_the_load_balancer_would_cut_is_refused(
    platform: Any, substrate: Any
) -> None:
    balancer = substrate("aws-stage1").outputs["substrate"]["load_balancer"]
    assert balancer["deregistration_delay_seconds"] == 600
    message = refused(
        platform, told={"load_balancer": {**balancer, "deregistration_delay_seconds": 599}}
    )
    assert message.startswith("governance: defaults.hard_stream_limit_seconds is 600")
    assert "after 599 s" in message
    assert "terrace:aws.loadBalancer.deregistrationDelaySeconds" in message


@pytest.mark.parametrize(("limit", "warned"), [(810, False), (811, True)])
def test_a_drain_longer_than_an_update_of_nodes_waits_is_told(
    platform: Any,
    substrate: Any,
    governance_with: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    limit: int,
    warned: bool,
) -> None:
    told: list[str] = []
    monkeypatch.setattr("pulumi.log.warn", lambda message, *_, **__: told.append(message))
    balancer = substrate("aws-stage1").outputs["substrate"]["load_balancer"]
    platform(
        "aws-stage1",
        told={"load_balancer": {**balancer, "deregistration_delay_seconds": 3600}},
        governanceFile=governance_with(
            "hard_stream_limit_seconds: 600", f"hard_stream_limit_seconds: {limit}"
        ),
    )
    assert any("PodEvictionFailure" in message for message in told) == warned


def test_spools_are_encrypted_volumes_of_ebs(platform: Any) -> None:
    graph = platform("aws-stage1")
    [made] = graph.of("StorageClass")
    assert made.inputs["provisioner"] == "ebs.csi.aws.com"
    assert made.inputs["parameters"] == {"type": "gp3", "encrypted": "true"}
    assert made.inputs["volumeBindingMode"] == "WaitForFirstConsumer"
    gateway = graph.one("StatefulSet", "terrace-gateway/gateway")
    [claim] = gateway.inputs["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == made.inputs["metadata"]["name"]
    assert made.name in graph.needs(gateway)
    assert "own-volume" not in {c["name"] for c in gateway.containers}
    [namespace] = [
        r for r in graph.of("Namespace") if r.inputs["metadata"]["name"] == "terrace-gateway"
    ]
    assert namespace.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == (
        "restricted"
    )


def test_invocation_logs_are_set_when_asked_and_only_then(platform: Any, substrate: Any) -> None:
    kind = "InvocationLoggingConfiguration"
    assert not platform("aws-stage1").of(kind)
    graph = platform("aws-stage1", bedrockInvocationLogs={"logRetentionDays": 90})
    logging = graph.one(kind).inputs["loggingConfig"]
    assert logging["textDataDeliveryEnabled"] is False
    [group] = [r for r in graph.of("LogGroup") if r.name.startswith("bedrock-invocations")]
    assert group.inputs["retentionInDays"] == 90
    assert group.inputs["kmsKeyId"] == substrate("aws-stage1").outputs["substrate"]["logs_key_arn"]
    deployment = graph.one("StatefulSet", "terrace-gateway/gateway")
    assert {graph.one(kind).parent, graph.one(kind).name} & graph.needs(deployment)
    assert graph.outputs["bedrock_log_group"]


def test_a_number_of_days_that_cloudwatch_does_not_take_is_refused(platform: Any) -> None:
    message = refused(platform, bedrockInvocationLogs={"logRetentionDays": 91})
    assert message.startswith(
        "terrace:bedrockInvocationLogs.logRetentionDays: must be one of 1, 3, 5"
    )


def test_roles_carry_the_tags_of_the_substrate(platform: Any) -> None:
    roles = platform("aws-stage1").of("Role")
    on_aws = [r for r in roles if r.type.startswith("aws:")]
    assert len(on_aws) == 3
    assert all(r.inputs["tags"]["environment"] == "stage1" for r in on_aws)


def test_somebodys_cluster_keeps_its_own_objects(platform: Any) -> None:
    cluster = {
        "name": "theirs",
        "kubeconfig": "{}",
        "identifier": "theirs",
        "api": {"cidr": "172.20.0.1/32", "port": 443},
        "belongs_to_stack": False,
    }
    provider = platform("aws-stage1", told={"cluster": cluster}).one("kubernetes")
    assert provider.inputs["upsertExistingObjects"] in {"false", False}


def test_what_comes_next_is_told(substrate: Any) -> None:
    steps = substrate("aws-stage1").outputs["next_steps"]
    assert any(step.startswith("aws ecr get-login-password") for step in steps)
    assert any(":0.1.0" in step for step in steps)
    assert steps[-1] == "pulumi up --stack aws-stage1-platform"


def test_a_pod_keeps_connections_longer_than_the_load_balancer(platform: Any) -> None:
    [guard] = platform("aws-stage1").one("StatefulSet", "terrace-gateway/gateway").pod["containers"]
    [seconds] = [e["value"] for e in guard["env"] if e["name"] == "TERRACE_KEEP_ALIVE_SECONDS"]
    assert int(seconds) > 4000  # an ALB's longest idle timeout
    [delay] = [e["value"] for e in guard["env"] if e["name"] == "TERRACE_DRAIN_DELAY_SECONDS"]
    assert int(delay) == 30


def test_without_a_load_balancer_the_gateway_is_in_the_cluster_only(platform: Any) -> None:
    graph = platform("aws-stage1", told={"load_balancer": None})
    assert not graph.of("TargetGroupBinding")
    assert not graph.of("Release")
    assert graph.outputs["gateway_url"] == "http://gateway.terrace-gateway:8080"


def test_what_the_platform_exports(platform: Any) -> None:
    outputs = platform("aws-stage1").outputs
    assert outputs["gateway_url"] == "https://gateway.example.com"
    assert outputs["admin_url"] == "http://gateway-admin.terrace-gateway:8081"
    assert outputs["bedrock_role_arn"].startswith("arn:aws:iam::123456789012:role/")
    steps = outputs["next_steps"]
    assert steps[0].startswith(f"aws eks update-kubeconfig --region {REGION} --name ")
    assert any("admin-key" in step for step in steps)


@pytest.mark.parametrize("stack", STACKS)
def test_the_ledgers_bucket_is_locked_and_told_from_others(substrate: Any, stack: str) -> None:
    graph = substrate(stack)
    [lock] = graph.of("BucketObjectLockConfiguration")
    [bucket] = [b for b in graph.of("Bucket") if b.inputs.get("objectLockEnabled")]
    assert bucket.inputs["tags"]["terrace.dev/purpose"] == "ledger"
    kept = lock.inputs["rule"]["defaultRetention"]
    assert kept["mode"] == "GOVERNANCE"
    assert kept["days"] >= 365


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_for_a_trial_leaves_nothing_locked_behind(
    render: Any, stack_program: Any, stack: str
) -> None:
    """The settings that docs/aws.md names for it go with the committed lock."""
    settings = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"]["terrace:aws"]
    settings.setdefault("keys", {})["retain"] = False
    settings["objects"] |= {"retain": False, "deleteObjects": True}
    settings["database"] |= {"deletionProtection": False, "finalSnapshot": False}
    settings["cluster"] |= {"deletionProtection": False}
    graph = render(stack_program(stack, aws=settings), stack=stack)
    [bucket] = [b for b in graph.of("Bucket") if b.inputs.get("objectLockEnabled")]
    assert bucket.inputs["forceDestroy"] is True
    assert not bucket.options.get("retainOnDelete")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
