"""Web ACLs and what they protect."""

import uuid
from collections.abc import Iterable
from typing import Any, Final

from ..inventory import Item
from ..models import AutoName, CloudError, Link, Problem
from ..rules import between, length, matches, one_of
from ..values import UNKNOWN, Properties, known
from ..world import World
from .elb.load_balancers import LOAD_BALANCER
from .model import ArnOf, AwsModel

WEB_ACL: Final = "aws:wafv2/webAcl:WebAcl"
ASSOCIATION: Final = "aws:wafv2/webAclAssociation:WebAclAssociation"
_MANAGED: Final = {
    "AWSManagedRulesCommonRuleSet": 700,
    "AWSManagedRulesAdminProtectionRuleSet": 100,
    "AWSManagedRulesKnownBadInputsRuleSet": 200,
    "AWSManagedRulesSQLiRuleSet": 200,
    "AWSManagedRulesLinuxRuleSet": 200,
    "AWSManagedRulesUnixRuleSet": 100,
    "AWSManagedRulesWindowsRuleSet": 200,
    "AWSManagedRulesPHPRuleSet": 100,
    "AWSManagedRulesAmazonIpReputationList": 25,
    "AWSManagedRulesAnonymousIpList": 50,
    "AWSManagedRulesBotControlRuleSet": 50,
    "AWSManagedRulesATPRuleSet": 50,
    "AWSManagedRulesACFPRuleSet": 50,
    "AWSManagedRulesAntiDDoSRuleSet": 50,
}
"""AWS' own rule groups and their capacity units."""


class WebAcl(AwsModel):
    token = WEB_ACL
    auto_name = AutoName("name", 128)
    rules = (
        length("name", 1, 128),
        matches("name", r"[\w-]+", "letters, digits, - and _"),
        matches(
            "description",
            r"[\w+=:#@/\-,.][\w+=:#@/\-,.\s]{0,254}[\w+=:#@/\-,.]",
            "letters, digits, spaces and +=:#@/-,.",
        ),
        one_of("scope", "REGIONAL", "CLOUDFRONT"),
        between("rules[].statement.rateBasedStatement.limit", 10, 2000000000),
        one_of("rules[].statement.rateBasedStatement.evaluationWindowSec", 60, 120, 300, 600),
        one_of(
            "rules[].statement.rateBasedStatement.aggregateKeyType",
            "IP",
            "FORWARDED_IP",
            "CUSTOM_KEYS",
            "CONSTANT",
        ),
    )
    replace_on = frozenset({"name", "namePrefix", "scope"})
    unique = (("scope", "name"),)
    duplicate_code = "WAFDuplicateItemException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        if inputs.get("scope") == "CLOUDFRONT" and world.place.region != "us-east-1":
            yield Problem(
                "scope",
                f"CLOUDFRONT is in us-east-1 only, the provider works in {world.place.region}",
            )
        actions = inputs.get("defaultAction")
        if (
            isinstance(actions, dict)
            and sum(actions.get(name) is not None for name in ("allow", "block")) != 1
        ):
            yield Problem("defaultAction", "exactly one of allow and block is required")
        for name in ("priority", "name"):
            seen: set[Any] = set()
            for where, value in known(inputs, f"rules[].{name}"):
                if value in seen:
                    yield Problem(where, f"{value!r} is given twice")
                seen.add(value)
        for where, rule in known(inputs, "rules[]"):
            yield from _check_rule(rule, where)

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(uuid.uuid4())

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        capacity = _capacity(inputs)
        if capacity > 5000:
            raise CloudError(
                "WAFLimitsExceededException",
                f"rules: {capacity} capacity units, a web ACL takes 5000",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        area = "global" if inputs.get("scope") == "CLOUDFRONT" else "regional"
        return {
            "arn": self.arn_in(world, "wafv2", f"{area}/webacl/{inputs['name']}/{id}"),
            "capacity": _capacity(inputs),
            "lockToken": id,
            "applicationIntegrationUrl": "",
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        for other in world.find(ASSOCIATION, webAclArn=item.arn):
            return (
                f"WAFAssociatedItemException: {item.id} is associated with {other['resourceArn']}"
            )
        return None


class WebAclAssociation(AwsModel):
    token = ASSOCIATION
    arns = (ArnOf("webAclArn", "wafv2", "regional/webacl/.+", here=True),)
    links = (Link("webAclArn", WEB_ACL, not_found="WAFNonexistentItemException"),)
    replace_on = frozenset({"resourceArn", "webAclArn"})
    unique = (("resourceArn",),)
    duplicate_code = "WAFInvalidOperationException"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['webAclArn']},{inputs['resourceArn']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        arn = str(inputs["resourceArn"])
        if ":loadbalancer/net/" in arn:
            raise CloudError(
                "WAFInvalidParameterException",
                f"resourceArn: {arn} is a network load balancer; WAF protects application ones",
            )
        if ":elasticloadbalancing:" in arn and world.get(arn, LOAD_BALANCER) is None:
            raise CloudError("WAFUnavailableEntityException", f"resourceArn: {arn} does not exist")


def _check_rule(rule: Properties, where: str) -> Iterable[Problem]:
    statement = rule.get("statement")
    group = isinstance(statement, dict) and any(
        statement.get(name) is not None
        for name in ("managedRuleGroupStatement", "ruleGroupReferenceStatement")
    )
    if group and rule.get("overrideAction") is None:
        yield Problem(f"{where}.overrideAction", "is required for a rule group: none or count")
    if group and rule.get("action") is not None:
        yield Problem(f"{where}.action", "is not allowed for a rule group; use overrideAction")
    if (
        isinstance(statement, dict)
        and not group
        and rule.get("action") is None
        and UNKNOWN not in statement.values()
    ):
        yield Problem(f"{where}.action", "is required: allow, block, count, captcha or challenge")
    for path, name in known(rule, "statement.managedRuleGroupStatement.name"):
        vendor = rule["statement"]["managedRuleGroupStatement"].get("vendorName")
        if vendor == "AWS" and name not in _MANAGED:
            yield Problem(
                f"{where}.{path}",
                f"{name!r} is not a rule group of AWS; valid: {', '.join(sorted(_MANAGED))}",
            )


def _capacity(inputs: Properties) -> int:
    return sum(
        _MANAGED.get(name, 100)
        for _, name in known(inputs, "rules[].statement.managedRuleGroupStatement.name")
    ) + 2 * len(list(known(inputs, "rules[].statement.rateBasedStatement")))


class WebAclLoggingConfiguration(AwsModel):
    token = "aws:wafv2/webAclLoggingConfiguration:WebAclLoggingConfiguration"
    links = (Link("resourceArn", WEB_ACL, not_found="WAFNonexistentItemException"),)
    rules = (
        matches(
            "logDestinationConfigs[]",
            r"arn:aws[\w-]*:(logs:[\w-]+:\d+:log-group:|s3:::|firehose:[\w-]+:\d+:deliverystream/)aws-waf-logs-.+",
            "an ARN whose name starts with aws-waf-logs-",
        ),
    )
    replace_on = frozenset({"resourceArn"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["resourceArn"])


MODELS = (WebAcl, WebAclAssociation, WebAclLoggingConfiguration)
