"""The load balancer in front of the gateway, owned by Pulumi and not by a controller."""

from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import AfterValidator, Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from terrace_components.arguments import Arguments, Port
from terrace_components.aws import arns
from terrace_components.aws.arguments import (
    CertificateArn,
    Different,
    Ipv4Input,
    Ipv4Range,
    Tags,
    TwoSubnetIds,
    VpcId,
    ZoneId,
    domain_name,
    one_of,
    text_like,
)
from terrace_components.aws.web_acl import Waf, WafArgs, protect

ANYWHERE = "0.0.0.0/0"
WIDEST_PREFIX = 8  # a wider range is nobody's network: two of /1 are everybody
HTTP, HTTPS = 80, 443
# TLS 1.2 and 1.3, forward secrecy and authenticated ciphers only; the same with FIPS modules; and
# the one with more ciphers of TLS 1.2, for old clients.
TLS_POLICIES = (
    "ELBSecurityPolicy-TLS13-1-2-Res-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Res-FIPS-2023-04",
    "ELBSecurityPolicy-TLS13-1-2-2021-06",
)
LONGEST_IDLE = 4000  # ELB's own limits, seconds
LONGEST_DRAIN = 3600
MOST_CIDRS = 25  # a security group holds 60 rules; a public one takes two per range
LONGEST_NAME = 24  # ELB takes 32 characters, of which Pulumi needs 8


class AwsLoadBalancerArgs(TypedDict):
    """Arguments of ``AwsLoadBalancer``."""

    # required
    vpc_id: pulumi.Input[str]
    """VPC of the load balancer and of the pods behind it."""
    subnet_ids: pulumi.Input[list[pulumi.Input[str]]]
    """Subnets in two zones at least: private ones if internal, else public ones."""
    allowed_cidrs: list[str]
    """Who may connect: 1 to 25 address ranges. One wider than /8, such as ``0.0.0.0/0``, needs
    ``internal: false`` and ``waf``."""
    certificate_arn: pulumi.Input[str]
    """Certificate for ``domain``, of the same region."""
    domain: str
    """Name that clients call."""
    target_port: int
    """Port of the pods."""
    health_path: str
    """Path that answers 200 while a pod takes requests, such as ``/readyz``."""
    # what it is
    internal: NotRequired[bool]
    """Reachable from inside the network only; default true."""
    zone_id: NotRequired[pulumi.Input[str]]
    """Route 53 zone that gets an alias record for ``domain``; default no record."""
    target_cidrs: NotRequired[list[pulumi.Input[str]]]
    """Where the pods are; default the VPC's first range."""
    health_port: NotRequired[int]
    """Port of the health check; default ``target_port``."""
    # times
    idle_timeout_seconds: NotRequired[int]
    """How long a connection may be silent, 1 to 4000; default 3600: a reasoning model may think
    for minutes before its first token."""
    deregistration_delay_seconds: NotRequired[int]
    """How long requests of a pod that goes may take to end, 0 to 3600; default 600, the guard's
    limit of a stream."""
    # protection
    tls_policy: NotRequired[str]
    """ELB's security policy; default TLS 1.2 and 1.3 with the strongest ciphers."""
    waf: NotRequired[WafArgs]
    """AWS WAF in front; default none."""
    deletion_protection: NotRequired[bool]
    """AWS refuses to delete it until this is false again; default false, because nothing is lost
    with it that the code cannot make anew."""
    access_log_bucket: NotRequired[pulumi.Input[str]]
    """Bucket for access logs, whose policy lets ELB write (``AwsBucket.load_balancer_logs``)."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class LoadBalancerSettings(Arguments):
    """Checked arguments that no other part gives."""

    internal: bool = True
    waf: Waf | None = None
    allowed_cidrs: Annotated[list[Ipv4Range], Different, Field(min_length=1, max_length=MOST_CIDRS)]
    domain: Annotated[str, AfterValidator(domain_name)]
    target_port: Port
    health_path: Annotated[str, Field(pattern=r"^/[\x21-\x7e]{0,1023}$")]
    health_port: Port | None = None
    idle_timeout_seconds: Annotated[int, Field(ge=1, le=LONGEST_IDLE)] = 3600
    deregistration_delay_seconds: Annotated[int, Field(ge=0, le=LONGEST_DRAIN)] = 600
    tls_policy: Annotated[str, one_of(*TLS_POLICIES)] = TLS_POLICIES[0]
    deletion_protection: bool = False

    @field_validator("allowed_cidrs")
    @classmethod
    def _everybody_only_on_purpose(cls, value: list[str], info: ValidationInfo) -> list[str]:
        wide = [cidr for cidr in value if int(cidr.rpartition("/")[2]) < WIDEST_PREFIX]
        if wide and info.data.get("internal"):
            raise ValueError(
                f"must name the ranges of your networks, none wider than /{WIDEST_PREFIX}: "
                f"{wide[0]} means nothing when internal"
            )
        if wide and info.data.get("waf") is None:
            who = "everybody" if ANYWHERE in wide else "a great part of the internet"
            raise ValueError(
                f"must name ranges, none wider than /{WIDEST_PREFIX}, or waf must be given: "
                f"{wide[0]} is {who}"
            )
        return value


class _AwsLoadBalancer(LoadBalancerSettings):
    vpc_id: VpcId
    subnet_ids: TwoSubnetIds
    certificate_arn: CertificateArn
    zone_id: ZoneId | None = None
    target_cidrs: Annotated[list[Ipv4Input], Field(min_length=1)] | None = None
    access_log_bucket: (
        Annotated[
            str | pulumi.Output[str],
            text_like(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket"),
        ]
        | None
    ) = None
    tags: Tags = Field(default_factory=dict)


class AwsLoadBalancer(pulumi.ComponentResource):
    """An application load balancer that speaks TLS 1.2 and 1.3 only and forwards to pods.

    Its own name has at most 24 characters. Pods join its target group by a
    ``TargetGroupBinding``. Creates: security group with its rules, load balancer, target group,
    listeners; where asked for a web ACL with its association, and an alias record.
    """

    url: pulumi.Output[str]
    """``https://<domain>``; known when listener and record stand."""
    target_group_arn: pulumi.Output[str]
    """ARN of the target group; known when the listener forwards to it."""
    security_group_id: pulumi.Output[str]
    """Security group of the load balancer, which pods let in."""
    dns_name: pulumi.Output[str]
    """The load balancer's own name, for records that are made elsewhere."""

    def __init__(
        self,
        name: str,
        args: AwsLoadBalancerArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsLoadBalancer", name, None, opts)
        if len(name) > LONGEST_NAME:
            raise ValueError(
                f"the name of an AwsLoadBalancer must have at most {LONGEST_NAME} characters; "
                f"{name!r} has {len(name)}"
            )
        self._name = name
        self._given = given = _AwsLoadBalancer.of(args)
        self._child = pulumi.ResourceOptions(parent=self)
        group, opened = self._security_group()
        balancer = aws.lb.LoadBalancer(
            name,
            load_balancer_type="application",
            internal=given.internal,
            subnets=given.subnet_ids,
            security_groups=[group.id],
            ip_address_type="ipv4",
            idle_timeout=given.idle_timeout_seconds,
            # The guard reads headers strictly too; what is malformed does not reach it.
            drop_invalid_header_fields=True,
            desync_mitigation_mode="defensive",
            enable_http2=True,
            enable_deletion_protection=given.deletion_protection,
            access_logs=(
                {"bucket": given.access_log_bucket, "prefix": name, "enabled": True}
                if given.access_log_bucket is not None
                else None
            ),
            tags=arns.tags(name, given.tags, Name=name),
            opts=pulumi.ResourceOptions(parent=self, depends_on=opened),
        )
        targets = self._target_group()
        listener = self._listeners(balancer, targets)
        ready: list[pulumi.CustomResource] = [listener]
        if given.waf is not None:
            ready.append(
                protect(
                    name,
                    given.waf,
                    load_balancer_arn=balancer.arn,
                    tags=given.tags,
                    parent=self,
                )
            )
        if given.zone_id is not None:
            ready.append(
                aws.route53.Record(
                    f"{name}-alias",
                    zone_id=given.zone_id,
                    name=given.domain,
                    type="A",
                    aliases=[
                        {
                            "name": balancer.dns_name,
                            "zone_id": balancer.zone_id,
                            "evaluate_target_health": False,  # one place: nowhere else to go
                        }
                    ],
                    opts=self._child,
                )
            )
        self.url = pulumi.Output.all(*[r.id for r in ready]).apply(
            lambda _: f"https://{given.domain}"
        )
        self.target_group_arn = pulumi.Output.all(targets.arn, listener.id).apply(lambda k: k[0])
        self.security_group_id = group.id
        self.dns_name = balancer.dns_name
        self.register_outputs(
            {
                "url": self.url,
                "targetGroupArn": self.target_group_arn,
                "securityGroupId": self.security_group_id,
                "dnsName": self.dns_name,
            }
        )

    def _security_group(self) -> "tuple[aws.ec2.SecurityGroup, list[pulumi.Resource]]":
        """From ``allowed_cidrs`` in, to the pods' ports out, and nothing else."""
        name, given = self._name, self._given
        group = aws.ec2.SecurityGroup(
            f"{name}-group",
            description="Load balancer of the gateway",
            vpc_id=given.vpc_id,
            tags=arns.tags(name, given.tags, Name=f"{name}-group"),
            opts=self._child,
        )
        rules: list[pulumi.Resource] = []
        # Only a public one: browsers that are sent a bare name try HTTP first.
        for port in [HTTPS] if given.internal else [HTTPS, HTTP]:
            for cidr in given.allowed_cidrs:
                rules.append(
                    aws.vpc.SecurityGroupIngressRule(
                        f"{name}-from-{cidr.replace('/', '-')}-{port}",
                        security_group_id=group.id,
                        description="Allowed clients",
                        cidr_ipv4=cidr,
                        ip_protocol="tcp",
                        from_port=port,
                        to_port=port,
                        tags=arns.tags(name, given.tags),
                        opts=self._child,
                    )
                )
        targets = given.target_cidrs
        if targets is None:
            vpc = aws.ec2.get_vpc_output(
                id=given.vpc_id, opts=pulumi.InvokeOutputOptions(parent=self)
            )
            targets = [vpc.cidr_block]
        for port in dict.fromkeys([given.target_port, given.health_port or given.target_port]):
            for index, cidr in enumerate(targets):
                rules.append(
                    aws.vpc.SecurityGroupEgressRule(
                        f"{name}-to-pods-{index}-{port}",
                        security_group_id=group.id,
                        description="Pods in the VPC",
                        cidr_ipv4=cidr,
                        ip_protocol="tcp",
                        from_port=port,
                        to_port=port,
                        tags=arns.tags(name, given.tags),
                        opts=self._child,
                    )
                )
        return group, rules

    def _target_group(self) -> "aws.lb.TargetGroup":
        given = self._given
        return aws.lb.TargetGroup(
            self._name,
            target_type="ip",
            protocol="HTTP",
            protocol_version="HTTP1",
            port=given.target_port,
            vpc_id=given.vpc_id,
            deregistration_delay=given.deregistration_delay_seconds,
            # Long streams pile up on old pods under round robin.
            load_balancing_algorithm_type="least_outstanding_requests",
            health_check={
                "enabled": True,
                "protocol": "HTTP",
                "path": given.health_path,
                "port": str(given.health_port) if given.health_port else "traffic-port",
                "matcher": "200",
                "interval": 10,
                "timeout": 5,
                "healthy_threshold": 2,
                "unhealthy_threshold": 3,
            },
            tags=arns.tags(self._name, given.tags, Name=self._name),
            opts=self._child,
        )

    def _listeners(
        self, balancer: "aws.lb.LoadBalancer", targets: "aws.lb.TargetGroup"
    ) -> "aws.lb.Listener":
        name, given = self._name, self._given
        if not given.internal:
            aws.lb.Listener(
                f"{name}-http",
                load_balancer_arn=balancer.arn,
                port=HTTP,
                protocol="HTTP",
                default_actions=[
                    {
                        "type": "redirect",
                        "redirect": {
                            "protocol": "HTTPS",
                            "port": str(HTTPS),
                            "status_code": "HTTP_301",
                        },
                    }
                ],
                tags=arns.tags(name, given.tags),
                opts=self._child,
            )
        return aws.lb.Listener(
            f"{name}-https",
            load_balancer_arn=balancer.arn,
            port=HTTPS,
            protocol="HTTPS",
            ssl_policy=given.tls_policy,
            certificate_arn=given.certificate_arn,
            default_actions=[{"type": "forward", "target_group_arn": targets.arn}],
            tags=arns.tags(name, given.tags),
            opts=self._child,
        )
