"""The load balancer: who gets in, what it forwards, for how long, and what WAF may not block."""

from typing import Any

import pulumi
import pulumi_aws as aws
import pytest

import terrace_components as components
from terrace_components.aws.web_acl import BODY_RULES

from .contract import check_component, make

CERTIFICATE = "arn:aws:acm:eu-west-1:123456789012:certificate/11111111-2222-4333-8444-555555555555"
LEAST = {
    "vpc_id": "vpc-0a1b2c3d",
    "subnet_ids": ["subnet-0a1b2c3d", "subnet-1a1b2c3d"],
    "allowed_cidrs": ["10.0.0.0/8"],
    "certificate_arn": CERTIFICATE,
    "domain": "models.example.com",
    "target_port": 8080,
    "health_path": "/readyz",
}
PUBLIC = {
    **LEAST,
    "internal": False,
    "allowed_cidrs": ["0.0.0.0/0"],
    "waf": {"rate_limit": 5000, "rule_groups": sorted(BODY_RULES), "count_only": True},
}
VARIANTS = {
    "least": LEAST,
    "every": {
        **PUBLIC,
        "zone_id": "Z0123456789ABC",
        "target_cidrs": ["10.20.0.0/16", "100.64.0.0/16"],
        "health_port": 8081,
        "idle_timeout_seconds": 4000,
        "deregistration_delay_seconds": 30,
        "tls_policy": "ELBSecurityPolicy-TLS13-1-2-Res-FIPS-2023-04",
        "deletion_protection": True,
        "access_log_bucket": "our-logs",
        "tags": {"team": "platform"},
    },
}


@pytest.fixture(autouse=True)
def vpc(cloud: Any) -> None:
    cloud.answers["aws:ec2/getVpc:getVpc"] = {"id": LEAST["vpc_id"], "cidrBlock": "10.20.0.0/16"}


def rules(graph: Any, kind: str) -> set[tuple[str, int, int, str]]:
    return {
        (r.inputs["cidrIpv4"], r.inputs["fromPort"], r.inputs["toPort"], r.inputs["ipProtocol"])
        for r in graph.of(kind)
    }


def listener(graph: Any, port: int) -> dict[str, Any]:
    [found] = [r.inputs for r in graph.of("Listener") if r.inputs["port"] == port]
    return found


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsLoadBalancer", VARIANTS)


def test_only_allowed_ranges_get_in_and_only_pods_are_reached(render: Any) -> None:
    graph = render(make("AwsLoadBalancer", LEAST, allowed_cidrs=["10.0.0.0/8", "192.0.2.0/24"]))
    assert rules(graph, "SecurityGroupIngressRule") == {
        ("10.0.0.0/8", 443, 443, "tcp"),
        ("192.0.2.0/24", 443, 443, "tcp"),
    }
    assert rules(graph, "SecurityGroupEgressRule") == {("10.20.0.0/16", 8080, 8080, "tcp")}
    group = graph.one("SecurityGroup").inputs
    assert not {"ingress", "egress"} & set(group)
    balancer = graph.one("LoadBalancer")
    for rule in (*graph.of("SecurityGroupIngressRule"), *graph.of("SecurityGroupEgressRule")):
        assert rule.name in graph.needs(balancer)


def test_a_public_one_answers_http_with_a_redirect_only(render: Any) -> None:
    graph = render(make("AwsLoadBalancer", VARIANTS["every"]))
    assert graph.one("LoadBalancer").inputs["internal"] is False
    [action] = listener(graph, 80)["defaultActions"]
    assert action == {
        "type": "redirect",
        "redirect": {"protocol": "HTTPS", "port": "443", "statusCode": "HTTP_301"},
    }
    assert {port for _, port, _, _ in rules(graph, "SecurityGroupIngressRule")} == {80, 443}
    assert rules(graph, "SecurityGroupEgressRule") == {
        (cidr, port, port, "tcp")
        for cidr in ("10.20.0.0/16", "100.64.0.0/16")
        for port in (8080, 8081)
    }


def test_an_internal_one_has_no_http_at_all(render: Any) -> None:
    graph = render(make("AwsLoadBalancer", LEAST))
    assert graph.one("LoadBalancer").inputs["internal"] is True
    assert [r.inputs["port"] for r in graph.of("Listener")] == [443]


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (None, "ELBSecurityPolicy-TLS13-1-2-Res-2021-06"),
        ("ELBSecurityPolicy-TLS13-1-2-2021-06",) * 2,
    ],
)
def test_tls_is_1_2_or_1_3(render: Any, given: str | None, policy: str) -> None:
    https = listener(render(make("AwsLoadBalancer", LEAST, tls_policy=given)), 443)
    assert (https["protocol"], https["sslPolicy"]) == ("HTTPS", policy)
    assert https["certificateArn"] == CERTIFICATE
    assert [action["type"] for action in https["defaultActions"]] == ["forward"]


def test_long_streams_are_not_cut(render: Any) -> None:
    graph = render(make("AwsLoadBalancer", LEAST))
    assert graph.one("LoadBalancer").inputs["idleTimeout"] == 3600
    assert graph.one("TargetGroup").inputs["deregistrationDelay"] == 600
    graph = render(make("AwsLoadBalancer", VARIANTS["every"]))
    assert graph.one("LoadBalancer").inputs["idleTimeout"] == 4000
    assert graph.one("TargetGroup").inputs["deregistrationDelay"] == 30


def test_targets_are_pods_that_say_they_are_ready(render: Any) -> None:
    group = render(make("AwsLoadBalancer", LEAST)).one("TargetGroup").inputs
    assert (group["targetType"], group["port"], group["protocol"]) == ("ip", 8080, "HTTP")
    check = group["healthCheck"]
    assert (check["path"], check["port"], check["matcher"]) == ("/readyz", "traffic-port", "200")
    assert check["timeout"] < check["interval"]
    group = render(make("AwsLoadBalancer", VARIANTS["every"])).one("TargetGroup").inputs
    assert group["healthCheck"]["port"] == "8081"


def test_malformed_headers_are_dropped(render: Any) -> None:
    balancer = render(make("AwsLoadBalancer", LEAST)).one("LoadBalancer").inputs
    assert balancer["dropInvalidHeaderFields"] is True
    assert balancer["desyncMitigationMode"] == "defensive"


@pytest.mark.parametrize("wanted", [True, False])
def test_deletion_protection_is_a_setting(render: Any, wanted: bool) -> None:
    graph = render(make("AwsLoadBalancer", LEAST, deletion_protection=wanted))
    assert graph.one("LoadBalancer").inputs["enableDeletionProtection"] is wanted


def test_access_logs_go_where_asked_for(render: Any) -> None:
    assert "accessLogs" not in render(make("AwsLoadBalancer", LEAST)).one("LoadBalancer").inputs
    balancer = render(make("AwsLoadBalancer", VARIANTS["every"])).one("LoadBalancer").inputs
    assert balancer["accessLogs"] == {"bucket": "our-logs", "prefix": "it", "enabled": True}


def test_the_domain_points_to_it_where_there_is_a_zone(render: Any) -> None:
    assert not render(make("AwsLoadBalancer", LEAST)).of("Record")
    record = render(make("AwsLoadBalancer", VARIANTS["every"])).one("Record").inputs
    assert (record["name"], record["type"]) == ("models.example.com", "A")
    assert record["zoneId"] == "Z0123456789ABC"
    [alias] = record["aliases"]
    assert alias["name"].endswith(".elb.amazonaws.com")


def acl(render: Any, **waf: Any) -> list[dict[str, Any]]:
    graph = render(make("AwsLoadBalancer", LEAST, waf=waf))
    association = graph.one("WebAclAssociation").inputs
    assert association["resourceArn"].startswith("arn:aws:elasticloadbalancing:")
    assert graph.one("WebAcl").inputs["scope"] == "REGIONAL"
    return graph.one("WebAcl").inputs["rules"]


def test_waf_never_blocks_a_prompt_for_its_length_or_text(render: Any) -> None:
    found = acl(render, rule_groups=sorted(BODY_RULES))
    groups = {
        r["name"]: r["statement"]["managedRuleGroupStatement"]
        for r in found
        if "managedRuleGroupStatement" in r["statement"]
    }
    common = groups["AWSManagedRulesCommonRuleSet"]["ruleActionOverrides"]
    assert {"name": "SizeRestrictions_BODY", "actionToUse": {"count": {}}} in common
    for name, group in groups.items():
        overridden = {o["name"] for o in group.get("ruleActionOverrides", [])}
        assert overridden == set(BODY_RULES[name])
        assert all(o["actionToUse"] == {"count": {}} for o in group.get("ruleActionOverrides", []))
        # Rules on paths, headers and query strings still block.
        assert all(rule.endswith("_BODY") for rule in overridden)


def test_waf_limits_the_rate_first(render: Any) -> None:
    [limit, *groups] = acl(render, rate_limit=100)
    assert limit["priority"] == 0
    assert limit["statement"]["rateBasedStatement"]["limit"] == 100
    assert limit["action"]["block"]["customResponse"]["responseCode"] == 429
    assert [g["overrideAction"] for g in groups] == [{"none": {}}] * 3
    assert [g["priority"] for g in groups] == [1, 2, 3]


def test_waf_can_count_only(render: Any) -> None:
    [_, *groups] = acl(render, count_only=True)
    assert [g["overrideAction"] for g in groups] == [{"count": {}}] * 3


def test_waf_keeps_no_samples_which_would_hold_keys(render: Any) -> None:
    for rule in acl(render):
        assert rule["visibilityConfig"]["sampledRequestsEnabled"] is False


def test_there_is_no_waf_unless_asked_for(render: Any) -> None:
    assert not render(make("AwsLoadBalancer", LEAST)).of("WebAcl")


def test_outputs_are_known_when_it_forwards(render: Any) -> None:
    def program() -> None:
        balancer = components.AwsLoadBalancer("it", VARIANTS["every"])
        pulumi.export("url", balancer.url)
        pulumi.export("dns", balancer.dns_name)
        aws.iot.Certificate("user", active=True, certificate_pem=balancer.target_group_arn)

    graph = render(program)
    assert graph.outputs["url"] == "https://models.example.com"
    assert graph.outputs["dns"].endswith(".elb.amazonaws.com")
    [user] = [r for r in graph.resources if r.name == "user"]
    assert "it-https" in user.dependencies


def test_subnets_and_the_vpc_may_come_from_the_network(render: Any, cloud: Any) -> None:
    cloud.answers["aws:ec2/getVpcEndpointService:getVpcEndpointService"] = {
        "serviceName": "com.amazonaws.eu-west-1.s3",
        "availabilityZones": [],
    }

    def program() -> None:
        network = components.AwsNetwork("net", {})
        components.AwsLoadBalancer(
            "it",
            {
                **LEAST,
                "vpc_id": network.vpc_id,
                "subnet_ids": network.private_subnet_ids,
                "target_cidrs": [network.cidr],
            },
        )

    graph = render(program)
    assert len(graph.one("LoadBalancer").inputs["subnets"]) == 3
    assert ("10.20.0.0/16", 8080, 8080, "tcp") in rules(graph, "SecurityGroupEgressRule")
    assert {r.name for r in render(program, preview=True).resources} == {
        r.name for r in graph.resources
    }


def test_a_name_that_aws_would_refuse_is_refused(render: Any) -> None:
    render(lambda: components.AwsLoadBalancer("a" * 24, LEAST))
    with pytest.raises(ValueError, match="at most 24 characters"):
        render(lambda: components.AwsLoadBalancer("a" * 25, LEAST))


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"vpc_id": "vpc"}, "vpc_id", "vpc-0a1b2c3d"),
        ({"subnet_ids": ["subnet-0a1b2c3d"]}, "subnet_ids", "at least 2"),
        ({"subnet_ids": ["subnet-0a1b2c3d"] * 2}, "subnet_ids", "once"),
        ({"subnet_ids": ["vpc-0a1b2c3d", "subnet-0a1b2c3d"]}, "subnet_ids", "not 'vpc-0a1b2c3d'"),
        ({"subnet_ids": "subnet-0a1b2c3d"}, "subnet_ids", "must be a list"),
        ({"allowed_cidrs": []}, "allowed_cidrs", "at least 1"),
        ({"allowed_cidrs": ["10.0.0.0/8"] * 2}, "allowed_cidrs", "once"),
        ({"allowed_cidrs": [f"10.0.{n}.0/24" for n in range(26)]}, "allowed_cidrs", "at most 25"),
        ({"allowed_cidrs": ["10.1.2.3/8"]}, "allowed_cidrs.0", "10.0.0.0/8"),
        ({"allowed_cidrs": ["2001:db8::/32"]}, "allowed_cidrs.0", "IPv4"),
        ({"allowed_cidrs": ["everyone"]}, "allowed_cidrs.0", "address range"),
        ({"allowed_cidrs": ["0.0.0.0/0"]}, "allowed_cidrs", "when internal"),
        ({"allowed_cidrs": ["0.0.0.0/0"], "internal": False}, "allowed_cidrs", "waf must be given"),
        ({"certificate_arn": "cert"}, "certificate_arn", "ARN of a certificate"),
        ({"domain": "models"}, "domain", "domain name"),
        ({"zone_id": "example.com"}, "zone_id", "Route 53's id"),
        ({"target_port": 0}, "target_port", "greater than"),
        ({"health_port": 70000}, "health_port", "65535"),
        ({"health_path": "readyz"}, "health_path", "pattern"),
        ({"target_cidrs": []}, "target_cidrs", "at least 1"),
        ({"target_cidrs": ["10.0.0.1/8"]}, "target_cidrs.0", "10.0.0.0/8"),
        ({"target_cidrs": [10]}, "target_cidrs.0", "address range"),
        ({"idle_timeout_seconds": 4001}, "idle_timeout_seconds", "4000"),
        ({"idle_timeout_seconds": 0}, "idle_timeout_seconds", "greater than"),
        ({"deregistration_delay_seconds": 3601}, "deregistration_delay_seconds", "3600"),
        ({"tls_policy": "ELBSecurityPolicy-2016-08"}, "tls_policy", "one of ELBSecurityPolicy-TLS"),
        ({"access_log_bucket": "Our Logs"}, "access_log_bucket", "name of a bucket"),
        ({"waf": {"rate_limit": 9}}, "waf.rate_limit", "10"),
        ({"waf": {"rule_groups": ["Mine"]}}, "waf.rule_groups.0", "one of AWSManagedRules"),
        (
            {"waf": {"rule_groups": ["AWSManagedRulesCommonRuleSet"] * 2}},
            "waf.rule_groups",
            "once",
        ),
        ({"waf": {"limit": 1}}, "waf.limit", "unknown property"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsLoadBalancer", LEAST, **changes), path)
