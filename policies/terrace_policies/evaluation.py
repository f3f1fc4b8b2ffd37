"""Runs rules over resources and says for each what came of it: a violation, or unchecked.

Knows no Pulumi: the pack at preview and ``terrace policy check`` on a state file both come here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from terrace_policies.checks import guarded
from terrace_policies.configuration import RULE_ID, Configuration
from terrace_policies.model import Finding, Level, Rule, Says, Unchecked
from terrace_policies.resources import Resource, Stack


@dataclass(frozen=True)
class Result:
    """What a rule has to say about a resource."""

    rule: Rule
    says: Says
    level: Level
    resource: Resource | None
    """``None`` for what concerns the stack as a whole."""

    @property
    def urn(self) -> str:
        """URN of the resource; empty for the stack as a whole."""
        return self.resource.urn if self.resource is not None else ""

    @property
    def unchecked(self) -> bool:
        """Whether the rule could not be run to its end."""
        return isinstance(self.says, Unchecked)

    @property
    def text(self) -> str:
        """The message for people."""
        where = f"{self.resource.name}: " if self.resource is not None else ""
        place = f"{where}{self.says.property}" if self.says.property else where.removesuffix(": ")
        if isinstance(self.says, Unchecked):
            return f"unchecked: {self.rule.id}: {place} is {self.says.reason}"
        said = f"{place}: {self.says.message}" if place else self.says.message
        return f"{said}. To do: {self.rule.remediation}"


class Evaluation:
    """The rule book under one configuration; remembers which exemptions were of use."""

    def __init__(self, rules: Sequence[Rule], configuration: Configuration) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.configuration = configuration
        self._exact: dict[str, list[Rule]] = {}
        self._kinds: dict[str, list[Rule]] = {}
        self._stack_rules = [rule for rule in rules if rule.stack is not None]
        for rule in rules:
            if rule.resource is None:
                continue
            for name in rule.types:
                kind = name.removeprefix("kubernetes:*:")
                index = self._kinds if kind != name else self._exact
                index.setdefault(kind, []).append(rule)

    def check_resource(self, resource: Resource) -> list[Result]:
        """All resource rules on one resource."""
        rules = self._exact.get(resource.type, [])
        name = resource.stack_name
        if resource.type.startswith("kubernetes:"):
            rules = [*rules, *self._kinds.get(resource.kind, [])]
        return [
            result
            for rule in rules
            if (check := rule.resource) is not None
            for says in guarded(
                lambda rule=rule, check=check: check(resource, self._given(rule, name))
            )
            if (result := self._result(rule, says, resource)) is not None
        ]

    def check_stack(self, stack: Stack) -> list[Result]:
        """All stack rules; then the configuration itself, whose unused entries are known now."""
        found: list[Result] = []
        name = stack.resources[0].stack_name if stack.resources else ""
        for rule in self._stack_rules:
            check = rule.stack
            if check is None:
                continue
            for says in guarded(
                lambda rule=rule, check=check: check(stack, self._given(rule, name))
            ):
                result = self._result(rule, says, stack.by_urn.get(says.urn))
                if result is not None:
                    found.append(result)
        return found

    def _given(self, rule: Rule, stack_name: str) -> dict[str, object]:
        given = self.configuration.parameters_of(rule)
        return {"trial": self.configuration.is_trial(stack_name), **given}

    def _result(self, rule: Rule, says: Says, resource: Resource | None) -> Result | None:
        if self.configuration.exempts(rule, resource):
            return None
        level = self.configuration.level_of(rule, resource)
        if isinstance(says, Unchecked):
            level = Level.ADVISORY
        urn = resource.urn if resource is not None else ""
        return Result(rule, replace(says, urn=urn), level, resource)


def configuration_results(
    evaluation: Evaluation, stack_name: str, more: Iterable[str] = ()
) -> list[Result]:
    """What is wrong with the configuration, once all resources were checked; ``more`` are
    sentences of the caller's."""
    rule, configuration = evaluation.rules[RULE_ID], evaluation.configuration
    problems = [*configuration.problems, *more, *configuration.unused(stack_name)]
    return [Result(rule, Finding("", problem), rule.level, None) for problem in problems]
