"""`terrace audit`: administrative changes, and the proof that the ledger is whole."""

import click

from terrace_cli.errors import ExitCode
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.output import counted, emit_json, emit_table
from terrace_common.one_line import one_line

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group("audit")
def audit_command() -> None:
    """The ledger and administrative changes: verify, chains, list."""


@audit_command.command("verify")
@click.option("--writer", help="Only this chain; `terrace audit chains` lists them.")
@json_option
def audit_verify(writer: str | None, as_json: bool) -> int:
    """Check that no ledger entry was changed, dropped, added, moved or cut off.

    Every entry's hash, the order of every chain, its columns, and the anchors that are kept outside
    of the database. Exit code 1 when something was found.
    """
    with GatewayAdmin.connect() as admin:
        answer = admin.verify_ledger(writer)
    if as_json:
        emit_json(answer)
        return ExitCode.DONE if answer["whole"] else ExitCode.CHECK_FAILED
    for finding in answer["findings"]:
        click.echo(
            one_line(
                f"{finding['kind']}: {finding['writer']} entry {finding['seq']}: {finding['text']}"
            )
        )
    if answer["more_findings"]:
        click.echo(f"and {answer['more_findings']} more")
    verdict = "whole" if answer["whole"] else "NOT whole"
    click.echo(
        f"The ledger is {verdict}: {counted(answer['entries'], 'row')} in "
        f"{counted(answer['chains'], 'chain')}, {counted(answer['anchors'], 'anchor')}."
    )
    if not answer["anchors"]:
        click.echo(
            "There are no anchors outside of the database: what was cut off at the end of a chain "
            "cannot be seen."
        )
    elif answer["unsigned_anchors"]:
        click.echo(f"{counted(answer['unsigned_anchors'], 'anchor')} without a signature.")
    return ExitCode.DONE if answer["whole"] else ExitCode.CHECK_FAILED


@audit_command.command("chains")
@json_option
def audit_chains(as_json: bool) -> None:
    """List the ledger's writers with their heads and last anchors."""
    with GatewayAdmin.connect() as admin:
        chains = list(admin.chains())
    if as_json:
        emit_json({"chains": chains})
        return
    emit_table(
        ("writer", "replica", "entries", "state", "anchored", "head"),
        [
            (
                chain["writer"],
                chain["replica"],
                str(chain["seq"]),
                "sealed" if chain["sealed_at"] else "open",
                "-" if chain["anchored_seq"] is None else str(chain["anchored_seq"]),
                chain["hash"][:16],
            )
            for chain in chains
        ],
    )


@audit_command.command("list")
@json_option
def audit_list(as_json: bool) -> None:
    """List administrative changes: who did what to what, when and why."""
    with GatewayAdmin.connect() as admin:
        changes = list(admin.audit())
    if as_json:
        emit_json({"changes": changes})
        return
    emit_table(
        ("when", "actor", "action", "subject", "reason"),
        [
            (
                change["created_at"],
                change["actor"],
                change["action"],
                change["subject"],
                change["reason"] or "-",
            )
            for change in changes
        ],
    )
