"""All rules on an exported state: what ``terrace policy check --state`` does."""

from dataclasses import dataclass

from terrace_policies.book import rules
from terrace_policies.configuration import Configuration
from terrace_policies.evaluation import Evaluation, Result, configuration_results
from terrace_policies.model import Level
from terrace_policies.state import read_state


@dataclass(frozen=True)
class Report:
    """What came of a check."""

    resources: int
    violations: list[Result]
    """Broken mandatory rules."""
    advisories: list[Result]
    unchecked: list[Result]


def check_state(text: str, source: str, configuration: Configuration) -> Report:
    """Check the text of an export; raises ``StateError`` if it is none."""
    resources, stack = read_state(text, source)
    evaluation = Evaluation(rules(), configuration)
    found = [result for resource in resources for result in evaluation.check_resource(resource)]
    found += evaluation.check_stack(stack)
    stack_name = resources[0].stack_name if resources else ""
    found += configuration_results(evaluation, stack_name)
    said = [result for result in found if not result.unchecked]
    return Report(
        resources=len(resources),
        violations=[r for r in said if r.level is Level.MANDATORY],
        advisories=[r for r in said if r.level is Level.ADVISORY],
        unchecked=[result for result in found if result.unchecked],
    )
