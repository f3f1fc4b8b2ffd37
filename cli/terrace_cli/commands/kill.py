"""`terrace kill` and `terrace unkill`: stop a key, a person, a team, a model, or everything."""

import re

import click

from terrace_cli.commands.gateway import json_option
from terrace_cli.errors import UsageError
from terrace_cli.gateway_admin import Document, GatewayAdmin
from terrace_cli.output import emit_json, emit_table

__all__ = ["kill_command", "unkill_command"]

_TARGET = re.compile(
    r"(key|team|org|user|app|model|provider):[A-Za-z0-9._:/@-]{1,256}"
    r"|subject:[a-z0-9._-]{1,63}:[^\x00-\x1f\x7f]{1,255}|all"
)


@click.command("kill")
@click.argument("target", required=False)
@click.option(
    "--reason", help="Kept in the audit and shown to administrators, not to whoever is refused."
)
@click.option("--list", "as_list", is_flag=True, help="Show what is stopped; changes nothing.")
@json_option
def kill_command(target: str | None, reason: str | None, as_list: bool, as_json: bool) -> None:
    """Stop all calls of a key, a team, a model, everything.

    Every replica refuses new calls of TARGET within a second, and cuts its running streams.
    TARGET is key:ID, team:NAME, org:NAME, user:NAME, app:NAME, model:NAME, provider:NAME,
    subject:ISSUER:SUBJECT or all. A subject is one person by their tokens of an oidc issuer,
    whether or not the spec names them; it is listed as the key that the ledger names them by.
    It holds until `terrace unkill TARGET`.
    """
    if as_list:
        if target or reason:
            raise UsageError("--list takes no target and no reason.")
        _list(as_json)
        return
    _switch(target, reason, kill=True, as_json=as_json)


@click.command("unkill")
@click.argument("target")
@click.option("--reason", help="Kept in the audit.")
@json_option
def unkill_command(target: str, reason: str | None, as_json: bool) -> None:
    """Take a kill switch back.

    TARGET is as `terrace kill --list` shows it.
    """
    _switch(target, reason, kill=False, as_json=as_json)


def _switch(target: str | None, reason: str | None, *, kill: bool, as_json: bool) -> None:
    if target is None or not _TARGET.fullmatch(target):
        raise UsageError(
            f"{target or 'nothing'!r} is no target. Right would be key:ID, team:NAME, org:NAME, "
            "user:NAME, app:NAME, model:NAME, provider:NAME, subject:ISSUER:SUBJECT or all."
        )
    if not reason or not reason.strip():
        raise UsageError("--reason is required: whoever looks at this later will want to know.")
    with GatewayAdmin.connect() as admin:
        answer = admin.switch(target, reason=reason, kill=kill)
    if as_json:
        emit_json(answer)
    elif kill:
        click.echo(f"{target} is stopped. `terrace unkill {target} --reason ...` takes it back.")
    else:
        click.echo(f"{target} is no longer stopped.")


def _list(as_json: bool) -> None:
    with GatewayAdmin.connect() as admin:
        answer: Document = admin.switches()
    if as_json:
        emit_json(answer)
        return
    if not answer["switches"]:
        click.echo("nothing is stopped")
        return
    columns = ("target", "since", "actor", "reason")
    emit_table(
        columns,
        [tuple(str(switch.get(name) or "-") for name in columns) for switch in answer["switches"]],
    )
