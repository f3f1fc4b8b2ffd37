"""The governance spec that a stack ships: valid, and every model priced."""

from collections.abc import Iterator
from typing import Any

from terrace_policies.catalogue import GOVERNANCE_KEY, Catalogue, governance_text, parse
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
from terrace_policies.resources import Resource

CONFIG_MAP = "kubernetes:*:ConfigMap"
PRICES = ("input_micro_usd_per_mtok", "output_micro_usd_per_mtok")


def _valid(config_map: Resource, given: Parameters) -> Iterator[Says]:
    del given
    text = governance_text(config_map)
    if text is None:
        return
    # Only a stack with a spec pays for the validator.
    from terrace_common.governance import GovernanceError, load_governance  # noqa: PLC0415

    try:
        load_governance(text, GOVERNANCE_KEY)
    except GovernanceError as error:
        for line, what in error.problems:
            yield Finding(f"data.{GOVERNANCE_KEY}", f"line {line}: {what}")


def _priced(config_map: Resource, given: Parameters) -> Iterator[Says]:
    text = governance_text(config_map)
    if text is None:
        return
    for index, model in enumerate(parse(text, config_map.name).section("models")):
        price = model.get("price")
        amounts = [price.get(key) for key in PRICES] if isinstance(price, dict) else []
        if any(isinstance(amount, int) and amount > 0 for amount in amounts):
            continue
        if model.get("name") not in given["free-models"]:
            yield Finding(
                f"data.{GOVERNANCE_KEY}: models[{index}].price",
                f"{model.get('name')} has no price above zero",
            )


def _budgeted(config_map: Resource, given: Parameters) -> Iterator[Says]:
    del given
    spec = _spec(config_map)
    if spec is None:
        return
    capped = {org.get("name") for org in spec.section("orgs") if _money_is_capped(org)}
    for index, team in enumerate(spec.section("teams")):
        if not (_money_is_capped(team) or team.get("org") in capped):
            yield Finding(
                f"data.{GOVERNANCE_KEY}: teams[{index}].quotas",
                f"neither team {team.get('name')} nor its org has a quota on micro_usd that blocks",
            )


def _enforced(config_map: Resource, given: Parameters) -> Iterator[Says]:
    spec = _spec(config_map)
    if spec is None:
        return
    for index, policy in enumerate(spec.section("policies")):
        if policy.get("mode") == "audit" and policy.get("name") not in given["trials"]:
            yield Finding(
                f"data.{GOVERNANCE_KEY}: policies[{index}].mode",
                f"policy {policy.get('name')} refuses nothing",
            )


def _kept_briefly(config_map: Resource, given: Parameters) -> Iterator[Says]:
    spec = _spec(config_map)
    if spec is None:
        return
    for index, policy in enumerate(spec.section("policies")):
        capture = policy.get("capture")
        days = capture.get("retention_days") if isinstance(capture, dict) else None
        if isinstance(days, int) and days > given["most-days"]:
            yield Finding(
                f"data.{GOVERNANCE_KEY}: policies[{index}].capture.retention_days",
                f"policy {policy.get('name')} keeps prompts for {days} days",
            )


def _spec(config_map: Resource) -> Catalogue | None:
    text = governance_text(config_map)
    return None if text is None else parse(text, config_map.name)


def _money_is_capped(subject: dict[str, Any]) -> bool:
    quotas = subject.get("quotas")
    return any(
        isinstance(quota, dict)
        and quota.get("dimension") == "micro_usd"
        and quota.get("mode", "block") == "block"
        for quota in (quotas if isinstance(quotas, list) else ())
    )


RULES = (
    Rule(
        id="governance-valid",
        description="The governance spec of a stack is valid",
        why="A guard that cannot read its spec does not start, after the old one was stopped.",
        remediation="Correct the line of the governance file that it names.",
        severity=Severity.HIGH,
        references=(Reference("NIST AI RMF 1.0", "GOVERN 1.4"),),
        types=(CONFIG_MAP,),
        resource=_valid,
    ),
    Rule(
        id="catalogue-priced",
        description="Every model of the catalogue has a price",
        why="A model without a price counts nothing against any budget.",
        remediation="Give both prices in micro-USD per million tokens, or name the model in"
        " free-models.",
        severity=Severity.HIGH,
        references=(Reference("OWASP LLM Top 10 2025", "LLM10 unbounded consumption"),),
        types=(CONFIG_MAP,),
        resource=_priced,
        parameters={"free-models": Parameter(list, [], "models that cost nothing", "any")},
    ),
    Rule(
        id="team-budgeted",
        description="Every declared team, or its org, has a money quota that blocks",
        why="Without one the only bound of a team's spend is the provider's bill.",
        remediation="Give the team or its org a quota on micro_usd, per month for example.",
        severity=Severity.MEDIUM,
        references=(Reference("OWASP LLM Top 10 2025", "LLM10 unbounded consumption"),),
        types=(CONFIG_MAP,),
        resource=_budgeted,
        level=Level.ADVISORY,
    ),
    Rule(
        id="policy-enforced",
        description="No policy of the governance spec is left in audit mode",
        why="A policy in audit mode records what it would refuse, and refuses nothing.",
        remediation="Set mode: block, or name the policy in trials while it is tried out.",
        severity=Severity.MEDIUM,
        references=(Reference("NIST AI RMF 1.0", "GOVERN 1.4"),),
        types=(CONFIG_MAP,),
        resource=_enforced,
        level=Level.ADVISORY,
        parameters={"trials": Parameter(list, [], "policies that are tried out", "any")},
    ),
    Rule(
        id="capture-kept-briefly",
        description="Captured prompts are not kept for longer than needed",
        why="What is captured can leak; personal data is kept no longer than its purpose needs.",
        remediation="Lower capture.retention_days of the policy.",
        severity=Severity.MEDIUM,
        references=(Reference("Regulation (EU) 2016/679", "Article 5(1)(e)"),),
        types=(CONFIG_MAP,),
        resource=_kept_briefly,
        level=Level.ADVISORY,
        parameters={
            "most-days": Parameter(int, 90, "days that prompts may be kept", "higher", least=1)
        },
    ),
)
