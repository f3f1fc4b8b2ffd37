"""`terrace governance`: who may call what, from a file to every replica of the gateway."""

import sys
from pathlib import Path

import click

from terrace_cli.commands.gateway import json_option
from terrace_cli.errors import CliError, ExitCode, UsageError
from terrace_cli.gateway_admin import Document, GatewayAdmin, RefusedError
from terrace_cli.output import counted, emit_json, emit_table
from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.governance.effects import plan_change
from terrace_common.governance.plan import Facts, Plan, plan_text
from terrace_common.one_line import one_line

__all__ = ["governance_command"]

MAX_SPEC_BYTES = 8 * 1024 * 1024

file_argument = click.argument("file")
reason_option = click.option("--reason", required=True, help="Why; kept with the version.")
allow_option = click.option(
    "--allow",
    multiple=True,
    metavar="CODE",
    help="Apply in spite of this finding; may be repeated.",
)


@click.group("governance")
def governance_command() -> None:
    """Who may call what: validate, plan, apply, roll back.

    FILE is a governance file; - is stdin.
    """


@governance_command.command("validate")
@file_argument
@json_option
def validate_command(file: str, as_json: bool) -> int:
    """Check FILE without a gateway. Every problem names its line.

    Exit codes: 0 it is valid, 2 it is not.
    """
    text, source = _read(file)
    try:
        spec = load_governance(text, source)
    except GovernanceError as error:
        if not as_json:
            click.echo(str(error), err=True)
            click.echo(counted(len(error.problems), "problem"), err=True)
        else:
            problems = [{"line": line, "message": what} for line, what in error.problems]
            emit_json({"valid": False, "problems": problems, "findings": []})
        return ExitCode.USAGE
    findings = plan_change(None, spec, Facts(), new_text=text)
    if as_json:
        document = Plan((), findings.findings).to_json()
        emit_json({"valid": True, "problems": [], "findings": document["findings"]})
        return ExitCode.DONE
    for finding in findings.findings:
        click.echo(f"{source}:{finding.line}: {finding.message} [{finding.code}]", err=True)
    click.echo(f"{source} is valid: {_size(spec)}.")
    return ExitCode.DONE


@governance_command.command("plan")
@file_argument
@json_option
def plan_command(file: str, as_json: bool) -> int:
    """What applying FILE would change, and what that does to live keys and running budgets.

    Exit codes: 0 apply would take it, 1 a finding blocks it, 2 the file is not valid.
    """
    text, source = _read(file)
    _check(text, source)
    with GatewayAdmin.connect() as admin:
        answer = admin.plan_governance(text)
    if as_json:
        emit_json(answer)
    else:
        click.echo(plan_text(answer), nl=False)
    return ExitCode.CHECK_FAILED if _blocking(answer, ()) else ExitCode.DONE


@governance_command.command("apply")
@file_argument
@reason_option
@allow_option
@json_option
def apply_command(file: str, reason: str, allow: tuple[str, ...], as_json: bool) -> int:
    """Put FILE in force on every replica, as a new version.

    The plan is shown first. Nothing is applied if a finding blocks that --allow does not name, or
    if another version came into force in between.

    Exit codes: 0 it is in force, 1 a finding blocks it, 2 the file is not valid.
    """
    text, source = _read(file)
    _check(text, source)
    with GatewayAdmin.connect() as admin:
        plan = admin.plan_governance(text)
        if not as_json:
            click.echo(plan_text(plan, allow), nl=False)
        if blocked := _blocking(plan, allow):
            return _blocked(plan, blocked, as_json)
        try:
            answer = admin.apply_governance(
                text, base_version=plan.get("base_version"), reason=reason, allow=allow
            )
        except RefusedError as refused:
            return _refused(refused, as_json, allow)
    if as_json:
        emit_json(answer)
    elif answer.get("unchanged"):
        click.echo(f"Version {answer['version']} has this text already; nothing was applied.")
    else:
        click.echo(f"Version {answer['version']} is in force.")
    return ExitCode.DONE


@governance_command.command("rollback")
@click.argument("version", type=click.IntRange(min=1))
@reason_option
@allow_option
@click.option(
    "--base-version",
    type=click.IntRange(min=1),
    metavar="N",
    help="The version to undo; nothing is done if another is in force. Default: the one in force"
    " when the command begins, which is shown.",
)
@json_option
def rollback_command(
    version: int, reason: str, allow: tuple[str, ...], base_version: int | None, as_json: bool
) -> int:
    """Put an older version in force again, as a new version with the same text.

    Nothing is applied if another version came into force in between.

    Exit codes: 0 it is in force, 1 a finding blocks it or another version came in between, 2 there
    is no such version.
    """
    with GatewayAdmin.connect() as admin:
        by_hand = base_version is not None
        if base_version is None:
            base_version = _shown_base(admin.governance())
        try:
            answer = admin.rollback_governance(
                version, base_version=base_version, reason=reason, allow=allow
            )
        except RefusedError as refused:
            return _refused(refused, as_json, allow, by_hand)
    if as_json:
        emit_json(answer)
        return ExitCode.DONE
    click.echo(plan_text(answer, allow), nl=False)
    click.echo(f"Version {answer['version']} is in force, with the text of version {version}.")
    return ExitCode.DONE


@governance_command.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@json_option
def history_command(limit: int, as_json: bool) -> None:
    """Versions, newest first: who applied them, when and why."""
    with GatewayAdmin.connect() as admin:
        versions = admin.governance_versions(limit)
    if as_json:
        emit_json({"versions": versions})
        return
    columns = ("version", "applied_at", "actor", "reason")
    emit_table(
        columns,
        [tuple(str(version.get(name) or "-") for name in columns) for version in versions],
    )


@governance_command.command("show")
@click.option("--version", type=click.IntRange(min=1), help="Instead of the one in force.")
@json_option
def show_command(version: int | None, as_json: bool) -> None:
    """The text of the version in force, as it was applied."""
    with GatewayAdmin.connect() as admin:
        answer = admin.governance(version)
    if as_json:
        emit_json(answer)
        return
    click.echo(answer["text"], nl=not answer["text"].endswith("\n"))
    click.echo(_applied(answer), err=True)
    if version is None and answer.get("problem"):
        click.echo(one_line(f"Problem: {answer['problem']}"), err=True)
    if version is None and answer.get("note"):
        click.echo(one_line(f"Note: {answer['note']}"), err=True)


def _shown_base(in_force: Document) -> int:
    click.echo(f"This undoes {_applied(in_force)}", err=True)
    return int(in_force["version"])


def _applied(version: Document) -> str:
    return one_line(
        f"version {version['version']}, applied {version.get('applied_at')} by"
        f" {version.get('actor')}: {version.get('reason') or 'no reason given'}"
    )


def _read(file: str) -> tuple[str, str]:
    """The text of a file and its name for errors. Raises UsageError."""
    source = "stdin" if file == "-" else file
    try:
        data = sys.stdin.buffer.read(MAX_SPEC_BYTES + 1) if file == "-" else Path(file).read_bytes()
        text = data.decode()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text.") from error
    if len(data) > MAX_SPEC_BYTES:
        raise UsageError(f"{source} is larger than {MAX_SPEC_BYTES} bytes.")
    return text, source


def _check(text: str, source: str) -> None:
    try:
        load_governance(text, source)
    except GovernanceError as error:
        raise UsageError(str(error)) from None


def _size(spec: Governance) -> str:
    nouns = ("model", "provider", "org", "team", "user", "app", "key")
    counts = [(len(getattr(spec, f"{noun}s")), noun) for noun in nouns]
    if spec.policies:
        counts.append((len(spec.policies), "policy"))
    parts = [counted(count, noun) for count, noun in counts if count]
    return ", ".join(parts).replace("policys", "policies")


def _blocking(plan: Document, allow: tuple[str, ...]) -> list[str]:
    found = {str(f["code"]) for f in plan["findings"] if f["blocking"]}
    return sorted(found - set(allow))


def _blocked(plan: Document, blocked: list[str], as_json: bool) -> int:
    if as_json:
        emit_json(plan)
    allow = " ".join(f"--allow {code}" for code in blocked)
    click.echo(f"Nothing was applied. If that is what you want, add {allow}.", err=True)
    return ExitCode.CHECK_FAILED


def _refused(
    refused: RefusedError, as_json: bool, allow: tuple[str, ...], base_by_hand: bool = False
) -> int:
    """A refusal that is the gateway's answer to a plan, told; any other is raised again."""
    if refused.code == "governance_blocked":
        plan = {"changes": [], **refused.document}
        if not as_json:
            click.echo(plan_text(plan, allow), nl=False)
        return _blocked(plan, _blocking(plan, allow), as_json)
    if refused.code == "version_conflict":
        if base_by_hand:
            said, then = "Another version than --base-version is in force", "give the one to undo"
        else:
            said = "Another version came into force in between"
            then = "run the same command again"
        raise CliError(
            f"{said}, and nothing was applied. Look at `terrace governance history`, then {then}."
        ) from refused
    raise refused
