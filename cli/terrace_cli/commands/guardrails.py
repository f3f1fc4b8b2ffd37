"""`terrace guardrails`: what a policy's guardrails would do with a text."""

from pathlib import Path
from typing import Any

import click

from terrace_cli.errors import ExitCode, UsageError
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.output import emit_json

MAX_BYTES = 1024 * 1024
_PHASES = {"before": "as a prompt", "after": "as an answer"}


@click.group("guardrails")
def guardrails_command() -> None:
    """Guardrails: try them on a text."""


@guardrails_command.command("test")
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True),
    required=True,
    help="A text in UTF-8; - reads standard input.",
)
@click.option("--policy", required=True, help="A policy of the governance version in force.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with the texts.")
def guardrails_test(file: Path, policy: str, as_json: bool) -> int:
    """Run the guardrails that a policy names on a text, as a prompt and as an answer.

    The gateway does it with the rules in force and keeps nothing. Guardrails of kind bedrock and
    http are not asked. Exit code 1 when the text would be blocked.
    """
    with GatewayAdmin.connect() as admin:
        answer = admin.test_guardrails(policy, _read(file))
    if as_json:
        emit_json(answer)
    else:
        for phase, where in _PHASES.items():
            _show(where, answer[phase])
        if answer["not_asked"]:
            click.echo(f"not asked: {', '.join(answer['not_asked'])} (bedrock or http)")
    blocked = any(answer[phase]["blocked"] for phase in _PHASES)
    return ExitCode.CHECK_FAILED if blocked else ExitCode.DONE


def _read(file: Path) -> str:
    with click.open_file(str(file), "rb") as source:
        data = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file} is larger than {MAX_BYTES} bytes.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 (byte {error.start}).") from None


def _show(where: str, phase: dict[str, Any]) -> None:
    verdict = "blocked" if phase["blocked"] else "passes"
    click.echo(f"{where}: {verdict}")
    for finding in phase["findings"]:
        rules = ", ".join(finding["rules"]) or "-"
        click.echo(f"  {finding['guardrail']}: {finding['did']} ({rules})")
