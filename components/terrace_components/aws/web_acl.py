"""A web ACL (AWS WAF) for a gateway whose request bodies are prompts."""

from collections.abc import Mapping
from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import AfterValidator, Field

from terrace_components.arguments import Arguments
from terrace_components.aws import arns
from terrace_components.aws.arguments import Different

# Rules that look at bodies, per managed rule group (AWS WAF developer guide, "Baseline" and
# "Use-case specific" rule groups). A prompt is any text: it is long (WAF reads the first 8 KiB, and
# SizeRestrictions_BODY blocks what is longer), and it holds HTML, paths, URLs, SQL and exploits on
# purpose. So these rules count and never block; the other rules of a group block.
BODY_RULES: Mapping[str, tuple[str, ...]] = {
    "AWSManagedRulesCommonRuleSet": (
        "SizeRestrictions_BODY",
        "EC2MetaDataSSRF_BODY",
        "GenericLFI_BODY",
        "GenericRFI_BODY",
        "CrossSiteScripting_BODY",
    ),
    "AWSManagedRulesKnownBadInputsRuleSet": (
        "JavaDeserializationRCE_BODY",
        "Log4JRCE_BODY",
        "ReactJSRCE_BODY",
    ),
    "AWSManagedRulesSQLiRuleSet": ("SQLi_BODY", "SQLiExtendedPatterns_BODY"),
    "AWSManagedRulesAmazonIpReputationList": (),
    "AWSManagedRulesAnonymousIpList": (),
}
DEFAULT_GROUPS = [
    "AWSManagedRulesAmazonIpReputationList",
    "AWSManagedRulesCommonRuleSet",
    "AWSManagedRulesKnownBadInputsRuleSet",
]
WINDOW_SECONDS = 300
MOST_REQUESTS = 2_000_000_000  # WAF's own limits
FEWEST_REQUESTS = 10


class WafArgs(TypedDict):
    """AWS WAF in front of the load balancer."""

    rate_limit: NotRequired[int]
    """Requests of one address in five minutes, above which it is blocked, 10 to 2000000000;
    default 2000. A company behind one NAT is one address. Quotas per key are the gateway's."""
    rule_groups: NotRequired[list[str]]
    """AWS's managed rule groups; default reputation list, common rules, known bad inputs. Rules
    on request bodies only count: prompts are long and look like anything."""
    count_only: NotRequired[bool]
    """Count what the rule groups match and block nothing of it, to see first; default false."""


def _group(value: str) -> str:
    if value not in BODY_RULES:
        raise ValueError(f"must be one of {', '.join(sorted(BODY_RULES))}")
    return value


class Waf(Arguments):
    """Checked ``WafArgs``."""

    rate_limit: Annotated[int, Field(ge=FEWEST_REQUESTS, le=MOST_REQUESTS)] = 2000
    rule_groups: Annotated[list[Annotated[str, AfterValidator(_group)]], Different] = Field(
        default_factory=lambda: list(DEFAULT_GROUPS)
    )
    count_only: bool = False


def protect(
    name: str,
    waf: Waf,
    *,
    load_balancer_arn: pulumi.Input[str],
    tags: Mapping[str, str],
    parent: pulumi.Resource,
) -> "aws.wafv2.WebAclAssociation":
    """Puts a web ACL in front of a load balancer: the rate limit first, then the rule groups."""
    child = pulumi.ResourceOptions(parent=parent)
    acl = aws.wafv2.WebAcl(
        f"{name}-waf",
        description="Terrace: rate limit and managed rules, bodies are prompts and only counted",
        scope="REGIONAL",
        default_action={"allow": {}},
        rules=[
            _rate_rule(waf.rate_limit),
            *(
                _group_rule(group, priority, count_only=waf.count_only)
                for priority, group in enumerate(waf.rule_groups, start=1)
            ),
        ],
        visibility_config=_metric("web-acl"),
        tags=arns.tags(name, tags),
        opts=child,
    )
    return aws.wafv2.WebAclAssociation(
        f"{name}-waf", resource_arn=load_balancer_arn, web_acl_arn=acl.arn, opts=child
    )


def _rate_rule(limit: int) -> "aws.wafv2.WebAclRuleArgsDict":
    return {
        "name": "rate-limit",
        "priority": 0,
        "action": {"block": {"custom_response": {"response_code": 429}}},
        "statement": {
            "rate_based_statement": {
                "limit": limit,
                "aggregate_key_type": "IP",
                "evaluation_window_sec": WINDOW_SECONDS,
            }
        },
        "visibility_config": _metric("rate-limit"),
    }


def _group_rule(group: str, priority: int, *, count_only: bool) -> "aws.wafv2.WebAclRuleArgsDict":
    return {
        "name": group,
        "priority": priority,
        "override_action": {"count": {}} if count_only else {"none": {}},
        "statement": {
            "managed_rule_group_statement": {
                "vendor_name": "AWS",
                "name": group,
                "rule_action_overrides": [
                    {"name": rule, "action_to_use": {"count": {}}} for rule in BODY_RULES[group]
                ],
            }
        },
        "visibility_config": _metric(group),
    }


def _metric(name: str) -> "aws.wafv2.WebAclVisibilityConfigArgsDict":
    return {
        "cloudwatch_metrics_enabled": True,
        "metric_name": name,
        # Samples show headers of requests, keys among them.
        "sampled_requests_enabled": False,
    }
