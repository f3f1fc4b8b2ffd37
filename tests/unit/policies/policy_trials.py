"""The rule book, run on fixtures and on small resources."""

from datetime import date
from typing import Any

from terrace_policies.book import rules
from terrace_policies.configuration import Configuration, read_configuration
from terrace_policies.evaluation import Evaluation, Result
from terrace_policies.resources import Resource, Stack

TODAY = date(2026, 11, 30)


def resource(kind: str, name: str, /, **tree: Any) -> Resource:
    """A resource of the stack `trial`."""
    return Resource(tree, type=kind, name=name, urn=f"urn:pulumi:trial::terrace::{kind}::{name}")


def check(stack: Stack, configuration: Configuration | None = None) -> list[Result]:
    """What all rules say about a stack."""
    evaluation = Evaluation(rules(), configuration or Configuration())
    found = [result for item in stack.resources for result in evaluation.check_resource(item)]
    return found + evaluation.check_stack(stack)


def broken(results: list[Result]) -> set[str]:
    """Ids of the rules that were found broken, whatever their level."""
    return {result.rule.id for result in results if not result.unchecked}


def configured(text: str) -> Configuration:
    """A configuration from YAML text, read on 30 November 2026."""
    return read_configuration(text, "policies.yaml", rules(), TODAY)
