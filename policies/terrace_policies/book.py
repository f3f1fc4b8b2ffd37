"""The rule book: every rule, by id."""

from functools import lru_cache

from terrace_policies.cel import cel_rules
from terrace_policies.model import Rule
from terrace_policies.rules import (
    bedrock,
    capacity,
    database,
    eks,
    governance,
    identity,
    kubernetes_stack,
    network,
    nodes,
    policy_configuration,
    storage,
)


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All rules in the order of the documentation."""
    modules = (eks, nodes, network, database, storage, identity, bedrock, governance, capacity)
    return (
        *(rule for module in modules for rule in module.RULES),
        *(cel.rule for cel in cel_rules()),
        *kubernetes_stack.RULES,
        *policy_configuration.RULES,
    )


def find_rule(identity: str) -> Rule | None:
    """The rule with this id, or ``None``."""
    return next((rule for rule in rules() if rule.id == identity), None)
