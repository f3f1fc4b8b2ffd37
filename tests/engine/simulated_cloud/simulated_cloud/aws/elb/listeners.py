"""Listeners and listener rules."""

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...inventory import Item
from ...models import CloudError, Link, Problem
from ...rules import between, one_of
from ...schema_check import nearest
from ...values import Properties, known
from ...world import World
from ..acm import CERTIFICATE
from ..model import ArnOf, AwsModel, digest
from .load_balancers import LISTENER, LOAD_BALANCER
from .target_groups import TARGET_GROUP

SECURITY_POLICIES: Final = (
    "ELBSecurityPolicy-TLS13-1-2-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Res-2021-06",
    "ELBSecurityPolicy-TLS13-1-3-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Ext1-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-Ext2-2021-06",
    "ELBSecurityPolicy-TLS13-1-1-2021-06",
    "ELBSecurityPolicy-TLS13-1-0-2021-06",
    "ELBSecurityPolicy-TLS13-1-2-FIPS-2023-04",
    "ELBSecurityPolicy-TLS13-1-3-FIPS-2023-04",
    "ELBSecurityPolicy-TLS13-1-2-Res-FIPS-2023-04",
    "ELBSecurityPolicy-TLS13-1-2-Res-PQ-2025-09",
    "ELBSecurityPolicy-TLS13-1-3-PQ-2025-09",
    "ELBSecurityPolicy-TLS13-1-2-PQ-2025-09",
    "ELBSecurityPolicy-FS-1-2-Res-2020-10",
    "ELBSecurityPolicy-FS-1-2-2019-08",
    "ELBSecurityPolicy-TLS-1-2-2017-01",
    "ELBSecurityPolicy-TLS-1-2-Ext-2018-06",
    "ELBSecurityPolicy-2016-08",
)
_ACTIONS: Final = {
    "forward": ("targetGroupArn", "forward"),
    "redirect": ("redirect",),
    "fixed-response": ("fixedResponse",),
    "authenticate-oidc": ("authenticateOidc",),
    "authenticate-cognito": ("authenticateCognito",),
    "jwt-validation": ("jwtValidation",),
}


class Listener(AwsModel):
    token = LISTENER
    rules = (
        between("port", 1, 65535),
        one_of("protocol", "HTTP", "HTTPS", "TCP", "TLS", "UDP", "TCP_UDP", "QUIC", "TCP_QUIC"),
        one_of("defaultActions[].redirect.statusCode", "HTTP_301", "HTTP_302"),
    )
    arns = (
        ArnOf("loadBalancerArn", "elasticloadbalancing", "loadbalancer/.+", here=True),
        ArnOf("certificateArn", "acm", "certificate/.+", here=True),
        ArnOf(
            "defaultActions[].targetGroupArn", "elasticloadbalancing", "targetgroup/.+", here=True
        ),
    )
    links = (
        Link("loadBalancerArn", LOAD_BALANCER, not_found="LoadBalancerNotFound"),
        Link("defaultActions[].targetGroupArn", TARGET_GROUP, not_found="TargetGroupNotFound"),
        Link(
            "defaultActions[].forward.targetGroups[].arn",
            TARGET_GROUP,
            not_found="TargetGroupNotFound",
        ),
        Link("certificateArn", CERTIFICATE, holds=True, not_found="CertificateNotFound"),
    )
    replace_on = frozenset({"loadBalancerArn"})
    unique = (("loadBalancerArn", "port"),)
    duplicate_code = "DuplicateListener"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        secure = inputs.get("protocol") in ("HTTPS", "TLS")
        if secure and inputs.get("certificateArn") is None:
            yield Problem("certificateArn", f"is required for {inputs['protocol']}")
        if not secure and isinstance(inputs.get("protocol"), str):
            for name in ("certificateArn", "sslPolicy"):
                if inputs.get(name) is not None:
                    yield Problem(name, f"is for HTTPS and TLS only, not {inputs['protocol']}")
        for where, policy in known(inputs, "sslPolicy"):
            if policy not in SECURITY_POLICIES:
                yield Problem(
                    where,
                    f"{policy!r} is not a security policy;"
                    f" {nearest(str(policy), list(SECURITY_POLICIES))}",
                )
        yield from check_actions(inputs, "defaultActions")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        stem = inputs["loadBalancerArn"].replace(":loadbalancer/", ":listener/")
        return f"{stem}/{secrets.token_hex(8)}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        balancer = world.get(inputs["loadBalancerArn"], LOAD_BALANCER)
        application = balancer is not None and balancer["loadBalancerType"] == "application"
        if application and inputs.get("protocol") not in (None, "HTTP", "HTTPS"):
            raise CloudError(
                "ValidationError",
                f"protocol: {inputs['protocol']} is not supported by application load balancers",
            )
        for path in (
            "defaultActions[].targetGroupArn",
            "defaultActions[].forward.targetGroups[].arn",
        ):
            for where, arn in known(inputs, path):
                group = world.get(arn, TARGET_GROUP)
                if group and balancer and group["vpcId"] != balancer["vpcId"]:
                    raise CloudError(
                        "InvalidConfigurationRequest",
                        f"{where}: target group and load balancer are in different VPCs",
                    )
                if group and application and group["protocol"] not in ("HTTP", "HTTPS"):
                    raise CloudError(
                        "InvalidConfigurationRequest",
                        f"{where}: protocol {group['protocol']} does not fit an application load"
                        " balancer",
                    )
        certificate = world.get(inputs.get("certificateArn") or "", CERTIFICATE)
        if certificate and certificate["status"] != "ISSUED":
            raise CloudError(
                "UnsupportedCertificate",
                f"certificateArn: {certificate.id} must be ISSUED, it is {certificate['status']}",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        secure = inputs.get("protocol") in ("HTTPS", "TLS")
        return {
            "arn": id,
            "sslPolicy": inputs.get("sslPolicy") or ("ELBSecurityPolicy-2016-08" if secure else ""),
        }

    def deleted(self, item: Item, world: World) -> None:
        for rule in world.find(ListenerRule.token, listenerArn=item.id):
            world.inventory.remove(rule)


class ListenerRule(AwsModel):
    token = "aws:lb/listenerRule:ListenerRule"
    rules = (between("priority", 1, 50000),)
    links = (
        Link("listenerArn", LISTENER, not_found="ListenerNotFound"),
        Link("actions[].targetGroupArn", TARGET_GROUP, not_found="TargetGroupNotFound"),
    )
    replace_on = frozenset({"listenerArn"})
    unique = (("listenerArn", "priority"),)
    duplicate_code = "PriorityInUse"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_actions(inputs, "actions")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        stem = inputs["listenerArn"].replace(":listener/", ":listener-rule/")
        return f"{stem}/{digest(name, length=16)}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": id}


class ListenerCertificate(AwsModel):
    token = "aws:lb/listenerCertificate:ListenerCertificate"
    links = (
        Link("listenerArn", LISTENER, not_found="ListenerNotFound"),
        Link("certificateArn", CERTIFICATE, holds=True, not_found="CertificateNotFound"),
    )
    replace_on = frozenset({"listenerArn", "certificateArn"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['listenerArn']}_{inputs['certificateArn']}"


def check_actions(inputs: Properties, path: str) -> Iterator[Problem]:
    """Each action has a type that exists, and what that type needs."""
    for where, action in known(inputs, f"{path}[]"):
        kind: Any = action.get("type")
        if not isinstance(kind, str):
            continue
        if kind not in _ACTIONS:
            yield Problem(f"{where}.type", f"{kind!r} is not one of {', '.join(_ACTIONS)}")
        elif all(action.get(name) is None for name in _ACTIONS[kind]):
            yield Problem(
                f"{where}.{_ACTIONS[kind][0]}", f"is required for an action of type {kind}"
            )


MODELS = (Listener, ListenerRule, ListenerCertificate)
