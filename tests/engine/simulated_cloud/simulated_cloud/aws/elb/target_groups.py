"""Target groups."""

from collections.abc import Iterable
from typing import Final

from ...inventory import Item
from ...models import AutoName, Link, Problem
from ...rules import between, length, matches, one_of
from ...values import Properties, first, known
from ...world import World
from ..ec2.network import VPC
from ..model import AwsModel, digest
from .load_balancers import LISTENER, NAME

TARGET_GROUP: Final = "aws:lb/targetGroup:TargetGroup"


class TargetGroup(AwsModel):
    token = TARGET_GROUP
    auto_name = AutoName("name", 32)
    rules = (
        length("name", 1, 32),
        NAME,
        between("port", 1, 65535),
        one_of(
            "protocol",
            "HTTP",
            "HTTPS",
            "TCP",
            "TLS",
            "UDP",
            "TCP_UDP",
            "GENEVE",
            "QUIC",
            "TCP_QUIC",
        ),
        one_of("protocolVersion", "HTTP1", "HTTP2", "GRPC"),
        one_of("targetType", "instance", "ip", "lambda", "alb"),
        one_of("ipAddressType", "ipv4", "ipv6"),
        one_of(
            "loadBalancingAlgorithmType",
            "round_robin",
            "least_outstanding_requests",
            "weighted_random",
        ),
        between("deregistrationDelay", 0, 3600),
        between("slowStart", 0, 900),
        between("healthCheck.interval", 5, 300),
        between("healthCheck.timeout", 2, 120),
        between("healthCheck.healthyThreshold", 2, 10),
        between("healthCheck.unhealthyThreshold", 2, 10),
        matches("healthCheck.path", r"/.{0,1023}", "a path that begins with /"),
        matches(
            "healthCheck.matcher",
            r"\d{1,3}(-\d{1,3})?(,\d{1,3}(-\d{1,3})?)*",
            "status codes such as 200 or 200-299",
        ),
        matches("healthCheck.port", r"traffic-port|\d{1,5}", "traffic-port or a port"),
        one_of(
            "stickiness.type",
            "lb_cookie",
            "app_cookie",
            "source_ip",
            "source_ip_dest_ip",
            "source_ip_dest_ip_proto",
        ),
    )
    links = (Link("vpcId", VPC, not_found="ValidationError"),)
    replace_on = frozenset(
        {
            "name",
            "namePrefix",
            "port",
            "protocol",
            "protocolVersion",
            "targetType",
            "vpcId",
            "ipAddressType",
        }
    )
    defaults = {
        "targetType": "instance",
        "deregistrationDelay": "300",
        "ipAddressType": "ipv4",
        "slowStart": 0,
    }
    unique = (("name",),)
    duplicate_code = "DuplicateTargetGroupName"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        if inputs.get("targetType") != "lambda":
            for name in ("port", "protocol", "vpcId"):
                if inputs.get(name) is None:
                    yield Problem(name, "is required unless targetType is lambda")
        interval, timeout = (
            first(inputs, "healthCheck.interval", 30),
            first(inputs, "healthCheck.timeout", 5),
        )
        if isinstance(inputs.get("healthCheck"), dict) and float(timeout) >= float(interval):
            yield Problem(
                "healthCheck.timeout", f"{timeout} must be below the interval, {interval}"
            )
        for where, version in known(inputs, "protocolVersion"):
            if inputs.get("protocol") not in ("HTTP", "HTTPS"):
                yield Problem(where, f"{version} is for protocol HTTP or HTTPS only")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        code = digest(world.place.scope("region"), inputs["name"], length=16)
        return self.arn_in(world, "elasticloadbalancing", f"targetgroup/{inputs['name']}/{code}")

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        users = [
            item["loadBalancerArn"]
            for item in world.all(LISTENER)
            if id in str(item["defaultActions"])
        ]
        return {"arn": id, "arnSuffix": id.rsplit(":", 1)[1], "loadBalancerArns": users}

    def blocks_delete(self, item: Item, world: World) -> str | None:
        for type, path in (
            (LISTENER, "defaultActions"),
            ("aws:lb/listenerRule:ListenerRule", "actions"),
        ):
            for other in world.all(type):
                if item.id in str(other[path]):
                    return (
                        f"ResourceInUse: target group {item.id} is currently in use by a listener"
                        f" or a rule ({other.id})"
                    )
        return None


class TargetGroupAttachment(AwsModel):
    token = "aws:lb/targetGroupAttachment:TargetGroupAttachment"
    links = (Link("targetGroupArn", TARGET_GROUP, not_found="TargetGroupNotFound"),)
    rules = (between("port", 1, 65535),)
    replace_on = frozenset({"targetGroupArn", "targetId", "port", "availabilityZone"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return (
            f"{inputs['targetGroupArn']}-{digest(str(inputs['targetId']), str(inputs.get('port')))}"
        )


MODELS = (TargetGroup, TargetGroupAttachment)
