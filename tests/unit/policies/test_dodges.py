"""Other names, other spellings and values of the wrong type hide nothing from the rules."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from policy_trials import broken, check, resource

from terrace_policies.model import Finding
from terrace_policies.networks import open_networks
from terrace_policies.resources import Stack, Unknown, usual_type

CONTAINER = {"name": "app", "image": "busybox:latest", "securityContext": {"privileged": True}}
POD = {"hostNetwork": True, "containers": [CONTAINER]}
NODE_RULES = {"pod-not-privileged", "pod-not-in-host-namespaces", "pod-image-pinned"}


@pytest.mark.parametrize(
    ("token", "usual"),
    [
        ("aws:alb/listener:Listener", "aws:lb/listener:Listener"),
        ("aws:elasticloadbalancingv2/listener:Listener", "aws:lb/listener:Listener"),
        ("aws:applicationloadbalancing/listener:Listener", "aws:lb/listener:Listener"),
        ("aws:s3/bucketV2:BucketV2", "aws:s3/bucket:Bucket"),
        (
            "aws:s3/bucketVersioningV2:BucketVersioningV2",
            "aws:s3/bucketVersioning:BucketVersioning",
        ),
        ("kubernetes:apps/v1:DeploymentPatch", "kubernetes:apps/v1:Deployment"),
        ("kubernetes:core/v1:NamespacePatch", "kubernetes:core/v1:NamespacePatch"),
        ("aws:wafv2/webAcl:WebAcl", "aws:wafv2/webAcl:WebAcl"),
        ("aws:apigatewayv2/api:Api", "aws:apigatewayv2/api:Api"),
    ],
)
def test_a_type_has_one_usual_name(token: str, usual: str) -> None:
    assert usual_type(token) == usual


@pytest.mark.parametrize("module", ["alb", "elasticloadbalancingv2"])
def test_a_load_balancer_by_another_name_is_judged(module: str) -> None:
    balancer = resource(f"aws:{module}/loadBalancer:LoadBalancer", "b", idleTimeout=3600)
    listener = resource(f"aws:{module}/listener:Listener", "l", protocol="HTTP", port=80)
    assert broken(check(Stack([balancer, listener]))) >= {
        "load-balancer-public-has-waf", "load-balancer-https-only",
    }  # fmt: skip


def test_a_bucket_by_its_old_name_is_judged() -> None:
    bucket = resource("aws:s3/bucketV2:BucketV2", "b")
    assert "bucket-not-public" in broken(check(Stack([bucket])))


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("apps/v1:DeploymentPatch", {"spec": {"template": {"spec": POD}}}),
        ("core/v1:ReplicationController", {"spec": {"template": {"spec": POD}}}),
        ("core/v1:PodTemplate", {"template": {"spec": POD}}),
        ("core/v1:PodPatch", {"spec": POD}),
        ("batch/v1:CronJobPatch", {"spec": {"jobTemplate": {"spec": {"template": {"spec": POD}}}}}),
    ],
)
def test_a_pod_in_any_kind_or_patch_is_judged(kind: str, tree: dict[str, Any]) -> None:
    item = resource(f"kubernetes:{kind}", "p", metadata={"namespace": "n", "name": "p"}, **tree)
    assert broken(check(Stack([item]))) >= NODE_RULES


def test_a_patch_that_sets_no_pod_is_left_alone() -> None:
    replicas = resource(
        "kubernetes:apps/v1:DeploymentPatch", "p",
        metadata={"name": "p", "namespace": "n"}, spec={"replicas": 2},
    )  # fmt: skip
    assert check(Stack([replicas])) == []


def test_a_container_that_takes_the_name_of_an_init_container_is_not_excused() -> None:
    own = {
        "name": "own", "securityContext": {"runAsNonRoot": False, "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}},
    }  # fmt: skip
    for main, expected in (("own", True), ("app", False)):
        pod = {
            "securityContext": {"runAsNonRoot": True},
            "initContainers": [own],
            "containers": [own | {"name": main} if main == "own" else {"name": main}],
        }
        item = resource("kubernetes:core/v1:Pod", "p", metadata={"namespace": "n"}, spec=pod)
        assert ("pod-runs-as-non-root" in broken(check(Stack([item])))) is expected


@pytest.mark.parametrize(
    ("cidrs", "wide"),
    [
        (["0.0.0.0/0"], ["0.0.0.0/0"]),
        (["0.0.0.0/1", "128.0.0.0/1"], ["0.0.0.0/1", "128.0.0.0/1"]),
        (["::/0", "10.0.0.0/8"], ["::/0"]),
        (["2000::/3"], ["2000::/3"]),
        ([f"{first}.0.0.0/8" for first in (8, 9)], ["8.0.0.0/8", "9.0.0.0/8"]),
        (["203.0.113.7/0"], ["203.0.113.7/0"]),
        (["10.0.0.0/8", "203.0.113.0/24", "2001:db8::/32"], []),
        (["no network", None], []),
    ],
)
def test_networks_are_added_up(cidrs: list[Any], wide: list[str]) -> None:
    assert open_networks(cidrs) == wide


@pytest.mark.parametrize("first", ["22", 22, 22.0])
def test_a_port_may_be_a_text(first: Any) -> None:
    rule = resource(
        "aws:ec2/securityGroupRule:SecurityGroupRule", "r", type="ingress", protocol="tcp",
        fromPort=first, toPort=first, cidrBlocks=["0.0.0.0/0"],
    )  # fmt: skip
    assert broken(check(Stack([rule]))) == {"security-group-admin-ports-closed"}


@pytest.mark.parametrize(
    ("kind", "tree", "rule"),
    [
        ("aws:iam/role:Role", {"assumeRolePolicy": {"Statement": ["x"]}}, "iam-trust-not-open"),
        ("aws:cloudwatch/logGroup:LogGroup", {"retentionInDays": "soon"}, "logs-expire"),
        ("aws:s3/bucket:Bucket", {"tags": "ledger"}, "ledger-bucket-locked"),
        ("kubernetes:core/v1:Pod", {"spec": "x"}, "pod-image-pinned"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_finding(kind: str, tree: dict[str, Any], rule: str) -> None:
    results = [r for r in check(Stack([resource(kind, "odd", **tree)])) if r.rule.id == rule]
    assert results
    assert all(isinstance(r.says, Finding) and r.text.startswith("odd: ") for r in results)


@pytest.mark.parametrize("action", ["bedrock:???????????", "b*:*", "?*", "bedrock:Inv*", "*:*"])
def test_a_pattern_of_actions_that_reaches_models_is_found(action: str) -> None:
    document = {"Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}
    item = resource("aws:iam/policy:Policy", "p", policy=document)
    assert "bedrock-no-wildcards" in broken(check(Stack([item])))


@pytest.mark.parametrize(("purpose", "locked"), [("ledger", False), ("objects", True)])
def test_a_bucket_is_for_the_ledger_by_its_tag(purpose: str, locked: bool) -> None:
    bucket = resource("aws:s3/bucket:Bucket", "objects", tags={"terrace.dev/purpose": purpose})
    assert ("ledger-bucket-locked" not in broken(check(Stack([bucket])))) is locked


@pytest.mark.parametrize(
    "policy", ["AdministratorAccess", "PowerUserAccess", "AmazonBedrockFullAccess", "IAMFullAccess"]
)
def test_a_broad_policy_is_found_wherever_it_is_attached(policy: str) -> None:
    arn = f"arn:aws:iam::aws:policy/{policy}"
    for kind, tree in (
        ("rolePolicyAttachment:RolePolicyAttachment", {"policyArn": arn}),
        ("userPolicyAttachment:UserPolicyAttachment", {"policyArn": arn}),
        ("role:Role", {"managedPolicyArns": [Unknown(), arn], "assumeRolePolicy": "{}"}),
    ):
        item = resource(f"aws:iam/{kind}", "a", **tree)
        assert "iam-no-broad-managed-policies" in broken(check(Stack([item])))


@pytest.mark.parametrize("prefix", range(33))
def test_the_metadata_service_is_found_in_every_network_that_holds_it(prefix: int) -> None:
    own = int(ip_address("169.254.169.254"))
    # Written with the address itself, as the network's own address, and the network beside it.
    base = ip_network((own, prefix), strict=False)
    spellings = {f"169.254.169.254/{prefix}": True, str(base): True}
    if prefix:
        spellings[str(ip_network((own ^ (1 << (32 - prefix)), prefix), strict=False))] = False
    for cidr, expected in spellings.items():
        item = resource(
            "kubernetes:networking.k8s.io/v1:NetworkPolicy", "p",
            metadata={"namespace": "n"}, spec={"egress": [{"to": [{"ipBlock": {"cidr": cidr}}]}]},
        )  # fmt: skip
        assert ("network-policy-spares-metadata" in broken(check(Stack([item])))) is expected, cidr
