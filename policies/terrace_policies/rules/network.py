"""Security groups, VPCs, load balancers and names."""

import re
from collections.abc import Iterator
from typing import Any

from terrace_policies.checks import each, each_resource
from terrace_policies.model import (
    Finding,
    Level,
    Parameter,
    Parameters,
    Reference,
    Rule,
    Says,
    Severity,
)
from terrace_policies.networks import open_networks
from terrace_policies.resources import Node, Resource, Stack
from terrace_policies.rules.references import GATEWAY_GUIDANCE

GROUP = "aws:ec2/securityGroup:SecurityGroup"
GROUP_RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
INGRESS_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
VPC = "aws:ec2/vpc:Vpc"
FLOW_LOG = "aws:ec2/flowLog:FlowLog"
BALANCER = "aws:lb/loadBalancer:LoadBalancer"
LISTENER = "aws:lb/listener:Listener"
WAF = "aws:wafv2/webAclAssociation:WebAclAssociation"
# SSH, RDP, databases, caches, search, etcd, kubelet, the guard's admin port.
CLOSED_PORTS = (22, 2379, 2380, 3306, 3389, 5432, 6379, 8081, 9200, 10250, 27017)
SUFFIX = re.compile(r"-[0-9a-f]{7}$")  # what Pulumi's auto-naming ends a name with
MODERN_TLS = re.compile(r"^ELBSecurityPolicy-(TLS13-1-[23]|FS-1-2-Res|TLS-1-2)")
# Types whose names are unique per account, region or world, and where they give the name.
NAMES = {
    "aws:s3/bucket:Bucket": "bucket",
    "aws:iam/role:Role": "name",
    "aws:iam/policy:Policy": "name",
    "aws:eks/cluster:Cluster": "name",
    "aws:rds/cluster:Cluster": "clusterIdentifier",
    "aws:rds/instance:Instance": "identifier",
    "aws:rds/subnetGroup:SubnetGroup": "name",
    "aws:rds/clusterParameterGroup:ClusterParameterGroup": "name",
    BALANCER: "name",
    "aws:lb/targetGroup:TargetGroup": "name",
    "aws:wafv2/webAcl:WebAcl": "name",
}


def _ingress(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if resource.type == GROUP:
        yield from each(resource.items("ingress"), _ingress_rule)
    elif resource.type == INGRESS_RULE or resource.get("type") == "ingress":
        yield from _ingress_rule(resource)


def _ingress_rule(rule: Node) -> Iterator[Says]:
    cidrs = {*(rule.get("cidrBlocks") or []), *(rule.get("ipv6CidrBlocks") or [])}
    cidrs |= {rule.get("cidrIpv4"), rule.get("cidrIpv6")}
    open_to = open_networks(cidrs - {None})
    if not open_to:
        return
    protocol = str(rule.get("protocol", rule.get("ipProtocol", "-1")))
    first, last = _port(rule.get("fromPort")), _port(rule.get("toPort"))
    if protocol in {"-1", "all"} or first is None or last is None or first < 0:
        first, last = 0, 65535
    reached = [str(port) for port in CLOSED_PORTS if first <= port <= last]
    if reached:
        at = f"{rule.path}.cidrBlocks" if rule.path else "cidrBlocks"
        yield Finding(at, f"{', '.join(open_to)} reaches port {', '.join(reached)}")


def _port(given: Any) -> int | None:
    """A port as Pulumi's provider reads it, from a text too; ``None`` if it is none."""
    try:
        return None if given is None else int(given)
    except (TypeError, ValueError):
        return None


def _default_group(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    groups = stack.of(DEFAULT_GROUP)

    def check_vpc(vpc: Resource) -> Iterator[Says]:
        if not any(stack.refers(group, "vpcId", vpc) for group in groups):
            yield Finding("", "its default security group lets all members talk to each other")

    def check_group(group: Resource) -> Iterator[Says]:
        for path in ("ingress", "egress"):
            if group.items(path):
                yield Finding(path, "must be empty")

    yield from each_resource(stack.of(VPC), check_vpc)
    yield from each_resource(groups, check_group)


def _flow_logs(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    logs = stack.of(FLOW_LOG)

    def check(vpc: Resource) -> Iterator[Says]:
        if not any(stack.refers(log, "vpcId", vpc) for log in logs):
            yield Finding("", "has no flow log")

    yield from each_resource(stack.of(VPC), check)


def _is_application(balancer: Resource) -> bool:
    return balancer.get("loadBalancerType", "application") == "application"


def _idle(balancer: Resource, given: Parameters) -> Iterator[Says]:
    seconds = balancer.get("idleTimeout", 60)
    if _is_application(balancer) and seconds < given["seconds"]:
        yield Finding(
            "idleTimeout", f"is {seconds:g} s; at least {given['seconds']} s, or silent streams die"
        )


def _https(listener: Resource, given: Parameters) -> Iterator[Says]:
    del given
    protocol = listener.get("protocol")
    if protocol == "HTTP":
        kinds = [action.get("type") for action in listener.items("defaultActions")]
        targets = [a.get("redirect.protocol") for a in listener.items("defaultActions")]
        if kinds != ["redirect"] or targets != ["HTTPS"]:
            yield Finding("protocol", "HTTP may only redirect to HTTPS: keys would be sent openly")
    elif protocol in {"HTTPS", "TLS"}:
        policy = str(listener.get("sslPolicy", "ELBSecurityPolicy-2016-08"))
        if not MODERN_TLS.match(policy):
            yield Finding("sslPolicy", f"{policy} allows TLS below 1.2")
    elif protocol in {"TCP", "UDP", "TCP_UDP"}:
        yield Finding("protocol", f"{protocol} passes whatever comes; must be HTTPS or TLS")


def _waf(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    associations = stack.of(WAF)

    def check(balancer: Resource) -> Iterator[Says]:
        if balancer.get("internal", False) or not _is_application(balancer):
            return
        if not any(stack.refers(a, "resourceArn", balancer) for a in associations):
            yield Finding("internal", "faces the internet without a WAF")

    yield from each_resource(stack.of(BALANCER), check)


def _headers(balancer: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if _is_application(balancer) and balancer.get("dropInvalidHeaderFields") is not True:
        yield Finding("dropInvalidHeaderFields", "must be true")


def _fixed_name(resource: Resource, given: Parameters) -> Iterator[Says]:
    path = NAMES[resource.type]
    name = resource.get(path)
    if name is None or path in (resource.get("__defaults") or []) or SUFFIX.search(str(name)):
        return
    if resource.stack_name in str(name) or name in given["allowed"]:
        return
    yield Finding(path, f"{name} is fixed: a second stack in this account cannot be made")


_SECONDS = Parameter(
    int, 600, "least idle timeout in seconds, 60 to 4000", "lower", least=60, most=4000
)
_CIS = "CIS AWS Foundations 3.0"

RULES = (
    Rule(
        id="security-group-admin-ports-closed",
        description="No security group opens an administration or database port to the world",
        why="These ports are scanned within minutes; nothing behind them expects strangers.",
        remediation="Name a security group or your networks instead of 0.0.0.0/0 and ::/0.",
        severity=Severity.CRITICAL,
        references=(Reference(_CIS, "5.2, 5.3"), Reference("AWS FSBP", "EC2.19")),
        types=(GROUP, GROUP_RULE, INGRESS_RULE),
        resource=_ingress,
    ),
    Rule(
        id="default-security-group-empty",
        description="The default security group of a VPC of ours has no rules",
        why="What is made without naming a group lands in it and may talk to everything in it.",
        remediation="Add DefaultSecurityGroup for the VPC, without ingress and egress.",
        severity=Severity.MEDIUM,
        references=(Reference(_CIS, "5.4"),),
        stack=_default_group,
    ),
    Rule(
        id="network-flow-logs",
        description="A VPC of ours writes flow logs",
        why="Without them nobody can say where data went.",
        remediation="Set `network.flow_logs`.",
        severity=Severity.LOW,
        references=(Reference(_CIS, "3.7"),),
        stack=_flow_logs,
        level=Level.ADVISORY,
    ),
    Rule(
        id="load-balancer-fits-streams",
        description="The load balancer's idle timeout is fit for long answers",
        why="At AWS's default of 60 s a model that thinks for a minute is cut off mid-answer.",
        remediation="Set `load_balancer.idle_timeout_seconds` (idleTimeout).",
        severity=Severity.MEDIUM,
        references=(GATEWAY_GUIDANCE,),
        types=(BALANCER,),
        resource=_idle,
        parameters={"seconds": _SECONDS},
    ),
    Rule(
        id="load-balancer-https-only",
        description="Listeners take TLS 1.2 or later only",
        why="Every request carries a virtual key.",
        remediation="Use an HTTPS listener with a TLS 1.3 policy; HTTP may only redirect to it.",
        severity=Severity.CRITICAL,
        references=(Reference("AWS FSBP", "ELB.1, ELB.17"),),
        types=(LISTENER,),
        resource=_https,
    ),
    Rule(
        id="load-balancer-public-has-waf",
        description="A load balancer that faces the internet has a WAF",
        why="Guessing of keys and floods should end before the guard.",
        remediation="Set `load_balancer.waf`, or keep `load_balancer.internal` true.",
        severity=Severity.HIGH,
        references=(Reference("AWS FSBP", "ELB.16"),),
        stack=_waf,
    ),
    Rule(
        id="load-balancer-drops-invalid-headers",
        description="The load balancer drops malformed headers",
        why="Malformed headers are how requests are smuggled past a check.",
        remediation="Set dropInvalidHeaderFields to true.",
        severity=Severity.MEDIUM,
        references=(Reference("AWS FSBP", "ELB.4"),),
        types=(BALANCER,),
        resource=_headers,
        level=Level.ADVISORY,
    ),
    Rule(
        id="no-fixed-names",
        description="Nothing has a fixed name where names are unique per account or world",
        why="The published guidance cannot run twice in one account and region for this reason.",
        remediation="Leave the name out: Pulumi makes one that cannot collide.",
        severity=Severity.MEDIUM,
        references=(GATEWAY_GUIDANCE,),
        types=tuple(NAMES),
        resource=_fixed_name,
        parameters={"allowed": Parameter(list, [], "names that may be fixed", "any")},
    ),
)
