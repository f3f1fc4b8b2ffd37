"""`terrace policy`: the rule book, read and run without a program, a backend or a cloud."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

from terrace_cli.errors import ExitCode, UsageError
from terrace_cli.output import counted, emit_json, emit_table
from terrace_policies.admission import manifests
from terrace_policies.book import find_rule, rules
from terrace_policies.checking import Report, check_state
from terrace_policies.configuration import find_configuration
from terrace_policies.documentation import explanation, record, with_tables
from terrace_policies.evaluation import Result
from terrace_policies.state import StateError

__all__ = ["policy_command"]


@click.group("policy")
def policy_command() -> None:
    """Policy as code: the rules, listed, explained, run."""


@policy_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON document.")
def list_command(as_json: bool) -> None:
    """Every rule, one a line."""
    if as_json:
        emit_json([record(rule) for rule in rules()])
        return
    rows = [(r.id, r.severity.value, r.level.value, r.description) for r in rules()]
    emit_table(("RULE", "SEVERITY", "LEVEL", "SAYS"), rows)


@policy_command.command("explain")
@click.argument("rule")
def explain_command(rule: str) -> None:
    """Why RULE is there, where it comes from, what to change, a good and a bad example."""
    found = find_rule(rule)
    if found is None:
        raise UsageError(f"no rule {rule!r}; `terrace policy list` shows all")
    click.echo(explanation(found), nl=False)


@policy_command.command("check")
@click.option(
    "--state", "source", required=True, help="Output of `pulumi stack export`; - is stdin."
)
@click.option("--config", default="", help="Instead of TERRACE_POLICY_CONFIG.")
@click.option("--json", "as_json", is_flag=True, help="The results as one JSON document.")
def check_command(source: str, config: str, as_json: bool) -> int:
    """Run all rules on an exported state; what was unknown at the preview is known there.

    Exit codes: 0 no mandatory rule is broken, 1 one is, 2 the file is no export.
    """
    text, name = _read(source)
    configuration = find_configuration(rules(), datetime.now(UTC).date(), config)
    try:
        report = check_state(text, name, configuration)
    except StateError as error:
        raise UsageError(str(error)) from None
    if as_json:
        emit_json({
            "resources": report.resources,
            "violations": [_row(result) for result in report.violations],
            "advisories": [_row(result) for result in report.advisories],
            "unchecked": [_row(result) for result in report.unchecked],
        })  # fmt: skip
    else:
        _print(report)
    return ExitCode.CHECK_FAILED if report.violations else ExitCode.DONE


@policy_command.command("manifests")
@click.option("--config", default="", help="Instead of TERRACE_POLICY_CONFIG.")
@click.option("--node-port", "ports", type=int, multiple=True, help="May be open; repeatable.")
def manifests_command(config: str, ports: tuple[int, ...]) -> None:
    """The Kubernetes rules as ValidatingAdmissionPolicies, YAML for `kubectl apply -f -`."""
    configuration = find_configuration(rules(), datetime.now(UTC).date(), config)
    if configuration.problems:
        raise UsageError("\n".join(configuration.problems))
    click.echo(yaml.safe_dump_all(manifests(configuration, ports), sort_keys=False), nl=False)


@policy_command.command("table", hidden=True)
@click.argument("page", type=click.Path(exists=True, path_type=Path), default="docs/policies.md")
def table_command(page: Path) -> None:
    """Write the tables of rules and parameters into PAGE anew."""
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def _read(source: str) -> tuple[str, str]:
    if source == "-":
        return sys.stdin.read(), "stdin"
    try:
        return Path(source).read_text(encoding="utf-8"), source
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{source}: {reason}") from None


def _print(report: Report) -> None:
    for results in (report.violations, report.advisories, report.unchecked):
        for result in results:
            word = "unchecked" if result.unchecked else result.level.value
            colour = {"mandatory": "red", "advisory": "yellow"}.get(word, "cyan")
            text = result.text.removeprefix(f"unchecked: {result.rule.id}: ")
            click.echo(f"{click.style(word, fg=colour)} {result.rule.id}: {text}")
    click.echo(
        f"{counted(report.resources, 'resource')}, {counted(len(rules()), 'rule')}:"
        f" {counted(len(report.violations), 'violation')}, {len(report.advisories)} advisory,"
        f" {len(report.unchecked)} unchecked"
    )


def _row(result: Result) -> dict[str, Any]:
    return {
        "rule": result.rule.id,
        "severity": result.rule.severity.value,
        "level": result.level.value,
        "urn": result.urn,
        "property": result.says.property,
        "message": result.text,
    }
