"""Security groups and their rules."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, cidr, length, matches, one_of
from ...values import UNKNOWN, Properties, known
from ...world import World
from ..model import AwsModel
from .network import LINK_VPC, SECURITY_GROUP, VPC, default_security_group_id

_NOT_FOUND = "InvalidGroup.NotFound"
_DESCRIPTION = r"[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]*"
_PROTOCOLS = ("tcp", "udp", "icmp", "icmpv6", "all", "-1")


class SecurityGroup(AwsModel):
    token = SECURITY_GROUP
    id_prefix = "sg"
    auto_name = AutoName("name", 255)
    rules = (
        length("name", 1, 255),
        matches(
            "name",
            r"(?!sg-)" + _DESCRIPTION,
            "letters, digits and ._-:/()#,@[]+=&;{}!$*, not starting with sg-",
        ),
        matches("description", _DESCRIPTION, "letters, digits, spaces and ._-:/()#,@[]+=&;{}!$*"),
        length("description", 0, 255),
        *(cidr(f"{side}[].cidrBlocks[]") for side in ("ingress", "egress")),
        *(
            between(f"{side}[].{end}Port", -1, 65535)
            for side in ("ingress", "egress")
            for end in ("from", "to")
        ),
    )
    links = (
        LINK_VPC,
        Link("ingress[].securityGroups[]", SECURITY_GROUP, holds=True, not_found=_NOT_FOUND),
        Link("egress[].securityGroups[]", SECURITY_GROUP, holds=True, not_found=_NOT_FOUND),
    )
    replace_on = frozenset({"name", "namePrefix", "description", "vpcId"})
    defaults = {"description": "Managed by Pulumi"}
    unique = (("vpcId", "name"),)
    duplicate_code = "InvalidGroup.Duplicate"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for side in ("ingress", "egress"):
            for where, rule in known(inputs, f"{side}[]"):
                yield from _check_ports(rule, where, "protocol")

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "ec2", f"security-group/{id}"),
            "ownerId": world.place.account,
            "ingress": inputs.get("ingress") or [],
            "egress": inputs.get("egress") or [],
        }


class DefaultSecurityGroup(AwsModel):
    """Adopts the group that came with the VPC; deleting it only lets go of it."""

    token = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
    links = (Link("vpcId", VPC, not_found="InvalidVpcID.NotFound"),)
    replace_on = frozenset({"vpcId"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return default_security_group_id(inputs["vpcId"])

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "ec2", f"security-group/{id}"),
            "ownerId": world.place.account,
            "name": "default",
            "description": "default VPC security group",
            "ingress": inputs.get("ingress") or [],
            "egress": inputs.get("egress") or [],
        }


class SecurityGroupRule(AwsModel):
    """The older kind of rule, with lists of sources."""

    token = "aws:ec2/securityGroupRule:SecurityGroupRule"
    id_prefix = "sgrule"
    rules = (
        one_of("type", "ingress", "egress"),
        cidr("cidrBlocks[]"),
        between("fromPort", -1, 65535),
        between("toPort", -1, 65535),
    )
    links = (
        Link("securityGroupId", SECURITY_GROUP, not_found=_NOT_FOUND),
        Link("sourceSecurityGroupId", SECURITY_GROUP, holds=True, not_found=_NOT_FOUND),
    )
    replace_on = frozenset(
        {
            "type",
            "fromPort",
            "toPort",
            "protocol",
            "cidrBlocks",
            "ipv6CidrBlocks",
            "prefixListIds",
            "securityGroupId",
            "sourceSecurityGroupId",
            "self",
        }
    )
    defaults = {"self": False}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from _check_ports(inputs, "", "protocol")
        sources = ("cidrBlocks", "ipv6CidrBlocks", "prefixListIds", "sourceSecurityGroupId", "self")
        if not any(inputs.get(name) is UNKNOWN or inputs.get(name) for name in sources):
            yield Problem("cidrBlocks", f"one of {', '.join(sources)} is required")

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_other_network(inputs, "sourceSecurityGroupId", world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"securityGroupRuleId": id}


class _Rule(AwsModel):
    id_prefix = "sgr"
    rules = (
        cidr("cidrIpv4"),
        between("fromPort", -1, 65535),
        between("toPort", -1, 65535),
        matches("description", _DESCRIPTION, "letters, digits, spaces and ._-:/()#,@[]+=&;{}!$*"),
    )
    links = (
        Link("securityGroupId", SECURITY_GROUP, not_found=_NOT_FOUND),
        Link("referencedSecurityGroupId", SECURITY_GROUP, holds=True, not_found=_NOT_FOUND),
    )
    replace_on = frozenset({"securityGroupId"})
    unique = (
        (
            "securityGroupId",
            "ipProtocol",
            "fromPort",
            "toPort",
            "cidrIpv4",
        ),
        (
            "securityGroupId",
            "ipProtocol",
            "fromPort",
            "toPort",
            "referencedSecurityGroupId",
        ),
    )
    duplicate_code = "InvalidPermission.Duplicate"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from _check_ports(inputs, "", "ipProtocol")
        sources = ("cidrIpv4", "cidrIpv6", "prefixListId", "referencedSecurityGroupId")
        given = [name for name in sources if inputs.get(name) is not None]
        if len(given) != 1:
            yield Problem(
                (given or ["cidrIpv4"])[-1], f"exactly one of {', '.join(sources)} is required"
            )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_other_network(inputs, "referencedSecurityGroupId", world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "ec2", f"security-group-rule/{id}"),
            "securityGroupRuleId": id,
        }


class SecurityGroupIngressRule(_Rule):
    token = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"


class SecurityGroupEgressRule(_Rule):
    token = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"


def refuse_other_network(inputs: Properties, source: str, world: World) -> None:
    """A rule's source group must be in the network of its own group."""
    own = world.get(inputs["securityGroupId"], SECURITY_GROUP)
    other = world.get(inputs[source], SECURITY_GROUP) if inputs.get(source) else None
    if own and other and own["vpcId"] != other["vpcId"]:
        raise CloudError(
            _NOT_FOUND,
            f"{source}: you have specified two resources that belong to different networks "
            f"({own.id} in {own['vpcId']}, {other.id} in {other['vpcId']})",
        )


def refuse_groups_of_other_network(
    ids: Iterable[Any], vpc_id: str, world: World, where: str
) -> None:
    """Raises when one of the security groups is in another VPC than `vpc_id`."""
    for id in ids:
        group = world.get(id, SECURITY_GROUP)
        if group and vpc_id and group["vpcId"] != vpc_id:
            raise CloudError(
                "InvalidParameter", f"{where}: {id} belongs to {group['vpcId']}, not to {vpc_id}"
            )


def _check_ports(rule: Properties, where: str, protocol_name: str) -> Iterator[Problem]:
    prefix = f"{where}." if where else ""
    protocol, low, high = rule.get(protocol_name), rule.get("fromPort"), rule.get("toPort")
    if UNKNOWN in (protocol, low, high):
        return
    if str(protocol) not in _PROTOCOLS and not re.fullmatch(r"\d{1,3}", str(protocol)):
        yield Problem(
            f"{prefix}{protocol_name}",
            f"{protocol!r} is not one of {', '.join(_PROTOCOLS)} or a number",
        )
    if str(protocol) in ("tcp", "udp"):
        if low is None or high is None:
            yield Problem(f"{prefix}fromPort", f"fromPort and toPort are required for {protocol}")
        elif int(low) > int(high):
            yield Problem(f"{prefix}toPort", f"{high} is below fromPort {low}")
    elif str(protocol) in ("-1", "all") and (low or high) not in (None, 0, -1):
        yield Problem(
            f"{prefix}fromPort", "all protocols (-1) means all ports: leave the ports out, or 0"
        )


MODELS = (
    SecurityGroup,
    DefaultSecurityGroup,
    SecurityGroupRule,
    SecurityGroupIngressRule,
    SecurityGroupEgressRule,
)
