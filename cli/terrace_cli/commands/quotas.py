"""`terrace quotas`: the providers' own quotas, and our shares of them."""

from typing import Any

import click

from terrace_cli.errors import ExitCode
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.output import counted, emit_json, emit_table
from terrace_common.one_line import one_line

WINDOWS = {60: "minute", 86_400: "day"}


@click.command("quotas")
@click.option("--check", is_flag=True, help="Exit code 1 if something is stale, gone or denied.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def quotas_command(check: bool, as_json: bool) -> int:
    """List the providers' own quotas and the caps made of them.

    A quota that nobody has read for too long is held at a lower share (state "stale"); one that the
    provider no longer names is kept at its last value ("vanished").
    """
    with GatewayAdmin.connect() as admin:
        pools = admin.upstream_quotas()
    problems = [problem for pool in pools for problem in _problems(pool)]
    if as_json:
        emit_json({"pools": pools, "problems": problems})
        return ExitCode.CHECK_FAILED if check and problems else ExitCode.DONE
    rows = [_row(pool, quota) for pool in pools for quota in pool["quotas"]]
    if rows:
        emit_table(("pool", "limits", "quota", "share", "in force", "age", "state"), rows)
    for problem in problems:
        click.echo(one_line(problem))
    click.echo(f"{counted(len(rows), 'quota')} in {counted(len(pools), 'pool')}.")
    return ExitCode.CHECK_FAILED if check and problems else ExitCode.DONE


def _row(pool: dict[str, Any], quota: dict[str, Any]) -> tuple[str, ...]:
    window = WINDOWS.get(quota["window_seconds"], f"{quota['window_seconds']} s")
    what = "tokens" if quota["dimension"] == "total_tokens" else quota["dimension"]
    return (
        pool["pool"],
        f"{what} per {window}",
        f"{quota['quota_value']:g} ({quota['source']}, {quota['quota_code']})",
        str(quota["share"]),
        "-" if quota["in_force"] is None else str(quota["in_force"]),
        f"{quota['age_seconds']:.0f} s",
        _state(quota),
    )


def _state(quota: dict[str, Any]) -> str:
    states = [
        word
        for word, since in (("stale", quota["degraded_at"]), ("vanished", quota["vanished_at"]))
        if since is not None
    ]
    return ", ".join(states) or "fresh"


def _problems(pool: dict[str, Any]) -> list[str]:
    told = {
        "ambiguous": "several quotas may be meant: the smallest holds",
        "unmatched": "the provider names no quota that is known to be of it",
        "no_such_profile": "the region has no such inference profile",
        "profile_leads_elsewhere": "its profile leads to several regions, and base_model to one",
    }
    found = [told.get(code, code) for code in pool["findings"]]
    if pool["access"] == "denied":
        found.append("the account may not call the model")
    states = {_state(quota) for quota in pool["quotas"]} - {"fresh"}
    found += [f"a quota is {state}" for state in sorted(states)]
    return [f"{pool['pool']}: {problem}" for problem in found]
