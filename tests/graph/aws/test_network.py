"""The VPC: zones, subnets, ways out, endpoints, flow logs; or one that exists."""

import ipaddress
import itertools
import json
from typing import Any

import pulumi_aws as aws
import pytest

import terrace_components as components
from terrace_components.aws.vpc_endpoints import STAGE_ONE

from .cloud import ACCOUNT, ZONES
from .contract import check_component, make
from .networks import EXISTING, existing_vpc, exports

KEY = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-4333-8444-555555555555"
VARIANTS = {
    "default": {"tags": {"team": "platform"}},
    "every": {
        "zones": ["eu-west-1c", "eu-west-1a"],
        "nat": "shared",
        "public_subnets": True,
        "pods": 500,
        "cidr": "10.40.0.0/20",
        "endpoints": ["bedrock-runtime", "com.amazonaws.eu-west-1.ecr.dkr"],
        "flow_logs": True,
        "flow_log_retention_days": 30,
        "flow_log_key_arn": KEY,
        "tags": {"team": "platform"},
    },
    "private": {"zone_count": 2, "nat": "none", "flow_logs": False},
    "existing": {"existing": {**EXISTING, "cidr": "10.50.0.0/16"}, "pods": 100},
}


@pytest.fixture(autouse=True)
def services(cloud: Any) -> dict[str, list[str]]:
    """Endpoint services and the zones that have them."""
    missing: dict[str, list[str]] = {}

    def find(args: dict[str, Any]) -> dict[str, Any]:
        name = args.get("serviceName") or f"com.amazonaws.eu-west-1.{args['service']}"
        return {"serviceName": name, "availabilityZones": missing.get(args.get("service"), ZONES)}

    cloud.answers["aws:ec2/getVpcEndpointService:getVpcEndpointService"] = find
    return missing


@pytest.fixture(autouse=True)
def vpc(cloud: Any) -> dict[str, Any]:
    return existing_vpc(cloud)


def subnets(graph: Any, kind: str) -> dict[str, Any]:
    return {
        r.name.rpartition("-")[2]: r for r in graph.of("Subnet") if r.name.startswith(f"it-{kind}-")
    }


def endpoints(graph: Any, kind: str) -> dict[str, Any]:
    return {
        r.inputs["serviceName"].removeprefix("com.amazonaws.eu-west-1."): r.inputs
        for r in graph.of("VpcEndpoint")
        if r.inputs["vpcEndpointType"] == kind
    }


def routes(graph: Any) -> dict[str, str]:
    """Route -> id of what it leads to."""
    return {
        r.name: r.inputs.get("natGatewayId") or r.inputs["gatewayId"] for r in graph.of("Route")
    }


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsNetwork", VARIANTS)


def test_three_zones_with_large_private_and_small_public_subnets(render: Any) -> None:
    graph = render(make("AwsNetwork", {}))
    vpc = graph.one("Vpc").inputs
    assert vpc["cidrBlock"] == "10.20.0.0/16"
    assert vpc["enableDnsSupport"] is vpc["enableDnsHostnames"] is True
    private, public = subnets(graph, "private"), subnets(graph, "public")
    assert [private[z].inputs["availabilityZone"] for z in "abc"] == ZONES[:3]
    assert [public[z].inputs["availabilityZone"] for z in "abc"] == ZONES[:3]
    assert {s.inputs["cidrBlock"].partition("/")[2] for s in private.values()} == {"19"}
    assert {s.inputs["cidrBlock"].partition("/")[2] for s in public.values()} == {"22"}
    every = [ipaddress.ip_network(s.inputs["cidrBlock"]) for s in graph.of("Subnet")]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(every, 2))
    assert not any(s.inputs["mapPublicIpOnLaunch"] for s in graph.of("Subnet"))


def test_load_balancers_find_their_subnets_by_tag(render: Any) -> None:
    graph = render(make("AwsNetwork", {}))
    for kind, role in (("private", "internal-elb"), ("public", "elb")):
        for subnet in subnets(graph, kind).values():
            roles = {k: v for k, v in subnet.inputs["tags"].items() if "kubernetes.io" in k}
            assert roles == {f"kubernetes.io/role/{role}": "1"}


def test_adding_a_zone_moves_no_subnet(render: Any) -> None:
    def ranges(zones: list[str]) -> dict[str, tuple[str, str]]:
        graph = render(make("AwsNetwork", {"zones": zones}))
        return {
            s.name: (s.inputs["availabilityZone"], s.inputs["cidrBlock"])
            for s in graph.of("Subnet")
        }

    two = ranges(["eu-west-1a", "eu-west-1c"])
    three = ranges(["eu-west-1b", "eu-west-1c", "eu-west-1a"])
    assert two.items() <= three.items()
    assert len(three) == len(two) + 2
    counted = render(make("AwsNetwork", {"zone_count": 3}))
    assert {s.name: (s.inputs["availabilityZone"], s.inputs["cidrBlock"])
            for s in counted.of("Subnet")} == three  # fmt: skip


def test_a_zone_that_appears_later_replaces_nothing_that_was_counted(render: Any) -> None:
    for subnet in render(make("AwsNetwork", {"zone_count": 2})).of("Subnet"):
        assert subnet.options["ignoreChanges"] == ["availabilityZone"]
    for subnet in render(make("AwsNetwork", VARIANTS["every"])).of("Subnet"):
        assert "ignoreChanges" not in subnet.options


def test_only_zones_that_eks_can_use_are_counted(render: Any, cloud: Any) -> None:
    render(make("AwsNetwork", {}))
    [asked] = [args for token, args in cloud.calls if token.endswith("getAvailabilityZones")]
    assert asked["excludeZoneIds"] == ["use1-az3", "usw1-az2", "cac1-az3"]
    assert asked["state"] == "available"
    [filters] = asked["filters"]
    assert filters == {"name": "opt-in-status", "values": ["opt-in-not-required"]}


def test_a_nat_per_zone_so_that_a_lost_zone_takes_no_other_with_it(render: Any) -> None:
    graph = render(make("AwsNetwork", {}))
    nats = {r.name: r for r in graph.of("NatGateway")}
    assert set(nats) == {"it-nat-a", "it-nat-b", "it-nat-c"}
    assert len(graph.of("Eip")) == 3
    out = routes(graph)
    private = {out[f"it-private-{z}-out"] for z in "abc"}
    assert len(private) == 3
    # A gateway without a way out, or an address without a gateway, fails to be made or unmade.
    assert all("it-public-out" in graph.needs(nat) for nat in nats.values())


def test_a_shared_nat_stands_in_the_first_zone_that_is_named(render: Any) -> None:
    graph = render(make("AwsNetwork", VARIANTS["every"]))
    [nat] = graph.of("NatGateway")
    assert nat.name == "it-nat-c"
    out = routes(graph)
    assert out["it-private-a-out"] == out["it-private-c-out"]


def test_shared_to_per_zone_changes_routes_and_no_table(render: Any) -> None:
    def names(nat: str, kind: str) -> set[str]:
        return {r.name for r in render(make("AwsNetwork", {"nat": nat})).of(kind)}

    for kind in ("Subnet", "RouteTable", "RouteTableAssociation", "Route"):
        assert names("shared", kind) == names("per-zone", kind)
    assert names("shared", "NatGateway") < names("per-zone", "NatGateway")


def test_without_nat_there_is_no_way_to_the_internet(render: Any) -> None:
    graph = render(make("AwsNetwork", VARIANTS["private"]))
    assert not graph.of("InternetGateway")
    assert not graph.of("Eip")
    assert not graph.of("Route")
    assert not subnets(graph, "public")


def test_a_public_load_balancer_may_stand_before_a_network_without_nat(render: Any) -> None:
    graph = render(make("AwsNetwork", {"nat": "none", "public_subnets": True}))
    assert set(routes(graph)) == {"it-public-out"}
    assert set(subnets(graph, "public")) == {"a", "b", "c"}


def test_s3_has_its_gateway_endpoint_always(render: Any) -> None:
    for args in (VARIANTS["default"], VARIANTS["every"], VARIANTS["private"]):
        graph = render(make("AwsNetwork", args))
        [s3] = endpoints(graph, "Gateway").values()
        assert len(s3["routeTableIds"]) == len(subnets(graph, "private"))


def test_beside_a_nat_there_are_the_endpoints_that_are_asked_for(render: Any) -> None:
    assert not endpoints(render(make("AwsNetwork", {})), "Interface")
    asked = endpoints(render(make("AwsNetwork", VARIANTS["every"])), "Interface")
    assert set(asked) == {"bedrock-runtime", "ecr.dkr"}


def test_without_nat_everything_that_stage_one_calls_has_an_endpoint(render: Any) -> None:
    graph = render(make("AwsNetwork", VARIANTS["private"]))
    found = endpoints(graph, "Interface")
    assert set(found) == set(STAGE_ONE)
    assert {"ecr.api", "ecr.dkr", "eks", "eks-auth", "sts", "bedrock-runtime"} <= set(found)
    for endpoint in found.values():
        assert endpoint["privateDnsEnabled"] is True
        assert len(endpoint["subnetIds"]) == 2
    assert not endpoints(render(make("AwsNetwork", {"nat": "none", "endpoints": []})), "Interface")


def test_endpoints_take_https_from_the_vpc_only(render: Any) -> None:
    graph = render(make("AwsNetwork", VARIANTS["private"]))
    [rule] = [r.inputs for r in graph.of("SecurityGroupIngressRule")]
    assert (rule["cidrIpv4"], rule["fromPort"], rule["toPort"]) == ("10.20.0.0/16", 443, 443)
    [group] = [r.inputs for r in graph.of("SecurityGroup")]
    assert not {"ingress", "egress"} & set(group)
    assert not graph.of("SecurityGroupEgressRule")


def test_an_endpoint_stands_in_the_zones_that_offer_it(
    render: Any, refused: Any, services: dict[str, list[str]]
) -> None:
    services["bedrock-runtime"] = ["eu-west-1b", "eu-west-1d"]
    graph = render(make("AwsNetwork", {"nat": "none"}))
    assert len(endpoints(graph, "Interface")["bedrock-runtime"]["subnetIds"]) == 1
    assert len(endpoints(graph, "Interface")["ecr.api"]["subnetIds"]) == 3
    services["bedrock-runtime"] = ["eu-west-1d"]
    reason = refused(make("AwsNetwork", {"nat": "none"}), "endpoints")
    assert "bedrock-runtime is offered in eu-west-1d" in reason


def test_the_default_security_group_lets_nothing_through(render: Any) -> None:
    group = render(make("AwsNetwork", {})).one("DefaultSecurityGroup").inputs
    assert (group["ingress"], group["egress"]) == ([], [])


def test_flow_logs_go_to_a_group_that_only_they_may_write(render: Any) -> None:
    graph = render(make("AwsNetwork", VARIANTS["every"]))
    log = graph.one("FlowLog").inputs
    assert (log["trafficType"], log["logDestinationType"]) == ("ALL", "cloud-watch-logs")
    group = graph.one("LogGroup").inputs
    assert (group["retentionInDays"], group["kmsKeyId"]) == (30, KEY)
    assert "name" not in group
    [trust] = json.loads(graph.one("Role").inputs["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"Service": "vpc-flow-logs.amazonaws.com"}
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": ACCOUNT}
    [write, read] = json.loads(graph.one("RolePolicy").inputs["policy"])["Statement"]
    assert all(resource.startswith(log["logDestination"]) for resource in write["Resource"])
    assert read["Action"] == ["logs:DescribeLogGroups"]
    assert "it-flow-logs" in graph.needs(graph.one("FlowLog"))
    assert render(make("AwsNetwork", {})).one("LogGroup").inputs["retentionInDays"] == 90


def test_flow_logs_can_be_left_out(render: Any) -> None:
    graph = render(make("AwsNetwork", {"flow_logs": False}))
    for kind in ("FlowLog", "LogGroup", "Role", "RolePolicy"):
        assert not graph.of(kind), kind


def test_who_uses_private_subnets_finds_their_ways_out(render: Any) -> None:
    """A node that starts before its route or endpoint exists never joins."""

    def program(args: dict[str, Any]) -> Any:
        def body() -> None:
            network = components.AwsNetwork("it", args)
            aws.rds.SubnetGroup("user", subnet_ids=network.private_subnet_ids)

        return body

    graph = render(program({}))
    [user] = graph.of("SubnetGroup")
    assert {"it-private-a-out", "it-private-a", "it-s3"} <= user.dependencies
    graph = render(program({"nat": "none"}))
    [user] = graph.of("SubnetGroup")
    assert {"it-ecr-api", "it-eks-auth", "it-private-c"} <= user.dependencies


def test_outputs(render: Any, cloud: Any) -> None:
    cloud.outputs["aws:ec2/eip:Eip"] = lambda name, _: {"publicIp": f"address of {name[:8]}"}
    outputs = render(exports(VARIANTS["every"])).outputs
    assert outputs["vpc_id"].startswith("vpc-")
    assert outputs["cidr"] == "10.40.0.0/20"
    assert outputs["zones"] == ["eu-west-1c", "eu-west-1a"]
    assert len(outputs["private_subnet_ids"]) == len(outputs["public_subnet_ids"]) == 2
    assert outputs["nat_addresses"] == ["address of it-nat-c"]


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({"zones": ["eu-west-1a", "eu-west-1e"]}, "zones", "eu-west-1a, eu-west-1b, eu-west-1c"),
        ({"zones": ["us-east-1a", "us-east-1b"]}, "zones", "us-east-1a, us-east-1b: EKS can use"),
        ({"zone_count": 5}, "zone_count", "at most 4"),
    ],
)
def test_zones_that_the_region_has_not_are_refused(
    refused: Any, args: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsNetwork", args), path)


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({"zones": ["eu-west-1a"]}, "zones", "at least 2"),
        ({"zones": ["eu-west-1a", "eu-west-1a"]}, "zones", "once"),
        ({"zones": ["eu-west-1a", "eu-west-2b"]}, "zones", "of one region"),
        ({"zones": ["eu-west-1", "eu-west-1b"]}, "zones.0", "such as eu-west-1a"),
        ({"zones": ["us-west-2a", "us-west-2-lax-1a"]}, "zones.1", "availability zone"),
        ({"zone_count": 1}, "zone_count", "greater than or equal to 2"),
        ({"zone_count": 7}, "zone_count", "less than or equal to 6"),
        ({"zone_count": 2, "zones": ZONES}, "zone_count", "beside zones"),
        ({"nat": "two"}, "nat", "one of per-zone, shared, none"),
        ({"public_subnets": False}, "public_subnets", "NAT gateway stands in them"),
        ({"cidr": "10.20.0.0"}, "cidr", "10.20.0.0/32"),
        ({"cidr": "10.20.1.0/16"}, "cidr", "10.20.0.0/16"),
        ({"cidr": "ten"}, "cidr", "address range"),
        ({"cidr": "2001:db8::/32"}, "cidr", "IPv4"),
        ({"cidr": "10.0.0.0/8"}, "cidr", "from /16 to /28"),
        ({"cidr": "54.0.0.0/16"}, "cidr", "private range"),
        ({"cidr": "10.20.0.0/25"}, "cidr", "a /22 or larger"),
        ({"cidr": "10.20.0.0/25", "nat": "none"}, "cidr", "a /24 or larger"),
        ({"cidr": "10.20.0.0/22", "pods": 1000}, "cidr", "such as 10.20.0.0/20"),
        ({"pods": 100000}, "cidr", "a /16 has room for"),
        ({"pods": 0}, "pods", "greater than"),
        ({"endpoints": ["sts", "sts"]}, "endpoints", "once"),
        ({"endpoints": [""]}, "endpoints.0", "at least 2"),
        ({"flow_log_retention_days": 31}, "flow_log_retention_days", "one of 1, 3, 5, 7"),
        (
            {"flow_logs": False, "flow_log_retention_days": 30},
            "flow_log_retention_days",
            "flow_logs: false",
        ),
        ({"flow_logs": False, "flow_log_key_arn": KEY}, "flow_log_key_arn", "flow_logs: false"),
        ({"flow_log_key_arn": "key"}, "flow_log_key_arn", "ARN of a KMS key"),
        *(
            ({"existing": EXISTING, key: value}, key, "beside existing")
            for key, value in {
                "zones": ZONES[:2],
                "zone_count": 2,
                "nat": "none",
                "public_subnets": True,
                "cidr": "10.50.0.0/16",
                "endpoints": ["sts"],
                "flow_logs": True,
                "flow_log_retention_days": 30,
                "flow_log_key_arn": KEY,
            }.items()
        ),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, args: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsNetwork", args), path)
