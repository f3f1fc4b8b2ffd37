"""Commands that talk to the gateway's admin API: key, spend, reconcile."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from terrace_cli.errors import ExitCode, UsageError
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.money import format_usd, parse_usd
from terrace_cli.output import counted, emit_json, emit_table

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_DURATION = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@click.group("key")
def key_command() -> None:
    """Keys: create, list, show, rotate, revoke."""


@key_command.command("create")
@click.option("--team", help="The team that pays; needed without --app, --user or a declared name.")
@click.option("--app", help="The declared app that it is for.")
@click.option("--user", help="The declared user that it is for.")
@click.option("--policies", help="Comma-separated names of declared policies that hold as well.")
@click.option(
    "--models", help="Comma-separated allow-list; without it the key may call every model."
)
@click.option("--budget-usd", help="Money cap in US dollars, for example 1.50.")
@click.option("--max-requests", type=click.IntRange(min=1), help="Cap on the number of calls.")
@click.option("--rpm", type=click.IntRange(min=1), help="Calls per minute.")
@click.option(
    "--name",
    help="What the key is for; the name of a key of the governance file mints that key's secret.",
)
@click.option(
    "--expires", help="When it ends: 30m, 12h, 90d, or a time such as 2027-01-31T00:00:00Z."
)
@json_option
def key_create(  # noqa: PLR0917  click passes them by name
    team: str | None,
    app: str | None,
    user: str | None,
    policies: str | None,
    models: str | None,
    budget_usd: str | None,
    max_requests: int | None,
    rpm: int | None,
    name: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Make a key. It is shown now and never again; only a keyed hash is stored."""
    if not (team or app or user or name):
        raise UsageError(
            "Whose key is it? Give --team, --app or --user, or --name of a key that the governance "
            "file declares."
        )
    budget = None if budget_usd is None else parse_usd(budget_usd)
    with GatewayAdmin.connect() as admin:
        made = admin.create_key(
            team=team,
            app=app,
            user=user,
            policies=_names(policies, "--policies", "eu-only,office-hours"),
            models=_names(models, "--models", "sim-small,bedrock-claude"),
            budget_micro_usd=budget,
            max_requests=max_requests,
            requests_per_minute=rpm,
            name=name,
            expires_at=None if expires is None else parse_expiry(expires, now=datetime.now(UTC)),
        )
    if as_json:
        emit_json(made)
        return
    click.echo(f"key     {made['key']}")
    click.echo(f"key id  {made['key_id']}")
    click.echo(f"team    {made.get('team', team)}; {_limits(made)}")
    click.echo("The key is not shown again.", err=True)


@key_command.command("list")
@click.option("--team", help="Only this team's keys.")
@click.option("--all", "show_all", is_flag=True, help="Also keys that are revoked or expired.")
@json_option
def key_list(team: str | None, show_all: bool, as_json: bool) -> None:
    """List keys with their limits and what they have spent.

    Never the keys themselves. With --json every key, whatever its state.
    """
    with GatewayAdmin.connect() as admin:
        answer = admin.keys(team)
    if as_json:
        emit_json(answer)
        return
    now = datetime.now(UTC)
    keys = [key for key in answer["keys"] if show_all or _state(key, now=now) == "active"]
    hidden = len(answer["keys"]) - len(keys)
    if not keys:
        whose = f" of team {team}" if team else ""
        more = f"; --all shows {hidden} revoked or expired" if hidden else ""
        click.echo(f"no keys{whose}{more}")
        return
    emit_table(
        ("key id", "team", "name", "state", "limits", "settled", "outstanding"),
        [
            (
                key["key_id"],
                key["team"],
                key.get("name") or "-",
                _state(key, now=now),
                _limits(key),
                format_usd(key["settled_micro_usd"]),
                format_usd(key["outstanding_micro_usd"]),
            )
            for key in keys
        ],
    )
    if hidden:
        click.echo(f"--all shows {hidden} more, revoked or expired", err=True)


@key_command.command("show")
@click.argument("key_id")
@json_option
def key_show(key_id: str, as_json: bool) -> None:
    """Everything that is known of a key, but never the key itself."""
    _check_key_id(key_id)
    with GatewayAdmin.connect() as admin:
        key = admin.key(key_id)
    if as_json:
        emit_json(key)
        return
    emit_table(
        ("field", "value"),
        [
            ("state", _state(key, now=datetime.now(UTC))),
            *((name, _shown(name, value)) for name, value in key.items() if value is not None),
        ],
    )


@key_command.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap",
    default="1h",
    show_default=True,
    help="How long the old one still works: 0, 30m, 12h, 7d.",
)
@click.option("--reason", help="Kept with the key.")
@json_option
def key_rotate(key_id: str, overlap: str, reason: str | None, as_json: bool) -> None:
    """Mint a new secret for a key. Its id, its caps and what it has spent stay.

    The new one is shown now and never again; the old one works until the overlap ends.
    """
    _check_key_id(key_id)
    with GatewayAdmin.connect() as admin:
        made = admin.rotate_key(key_id, overlap_seconds=parse_seconds(overlap), reason=reason)
    if as_json:
        emit_json(made)
        return
    click.echo(f"key     {made['key']}")
    click.echo(f"key id  {made['key_id']}")
    click.echo(f"the old secret works until {made.get('old_secret_expires_at') or 'now'}")
    click.echo("The key is not shown again.", err=True)


@key_command.command("revoke")
@click.argument("key_id")
@click.option("--reason", help="Kept with the key.")
@json_option
def key_revoke(key_id: str, reason: str | None, as_json: bool) -> None:
    """End a key. Doing it twice is the same as once."""
    _check_key_id(key_id)
    with GatewayAdmin.connect() as admin:
        answer = admin.revoke_key(key_id, reason)
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{key_id} is revoked.")


@click.command("spend")
@click.option(
    "--by", type=click.Choice(["team", "key", "model"]), default="team", show_default=True
)
@json_option
def spend_command(by: str, as_json: bool) -> None:
    """What models have cost, from the ledger.

    Outstanding is reserved and not settled yet.
    """
    with GatewayAdmin.connect() as admin:
        answer = admin.spend(by)
    if as_json:
        emit_json(answer)
        return
    emit_table(
        (by, "requests", "input tokens", "output tokens", "settled", "outstanding"),
        [
            (
                str(row[by]),
                str(row["requests"]),
                str(row["input_tokens"]),
                str(row["output_tokens"]),
                format_usd(row["settled_micro_usd"]),
                format_usd(row["outstanding_micro_usd"]),
            )
            for row in answer["rows"]
        ],
    )
    click.echo(
        f"total {format_usd(answer['total_micro_usd'])}, "
        f"outstanding {format_usd(answer['outstanding_micro_usd'])}"
    )


@click.command("reconcile")
@click.option(
    "--recheck-hours",
    type=click.IntRange(0, 744),
    default=0,
    help="Also compare what was settled in the last hours with the providers' logs.",
)
@json_option
def reconcile_command(recheck_hours: int, as_json: bool) -> int:
    """Settle unknown outcomes from the providers' logs.

    Exit code 1 when something is still open, a provider could not be reached, or a settled call had
    cost another amount than we had settled (it is corrected then), or a provider's log has calls
    of ours that the ledger does not know.
    """
    with GatewayAdmin.connect() as admin:
        answer = admin.reconcile(recheck_hours)
    if as_json:
        emit_json(answer)
    else:
        click.echo(
            f"{counted(answer['checked'], 'attempt')} checked: {answer['trued_up']} trued up, "
            f"{answer['not_billed']} not billed, {answer['still_open']} still open."
        )
        if answer["unreachable"]:
            click.echo(f"Providers that did not answer: {', '.join(answer['unreachable'])}.")
        if answer.get("unpriced"):
            click.echo(
                f"{counted(answer['unpriced'], 'attempt')} not corrected: the price that they were "
                "reserved at cannot be found."
            )
        if recheck_hours:
            click.echo(
                f"{counted(answer['rechecked'], 'settled attempt')} compared: "
                f"{answer['drifted']} had cost another amount, "
                f"{answer['drift_micro_usd']} micro-USD in sum."
            )
            for line in answer.get("unknown_to_ledger", ()):
                click.echo(
                    f"Unknown to the ledger: {line['attempt_id']} at {line['provider']}, "
                    f"{line['at']}, {line['input_tokens']} + {line['output_tokens']} tokens."
                )
    settled = not (
        answer["still_open"]
        or answer["unreachable"]
        or answer.get("drifted")
        or answer.get("unpriced")
        or answer.get("unknown_calls")
    )
    return ExitCode.DONE if settled else ExitCode.CHECK_FAILED


def parse_expiry(text: str, *, now: datetime) -> str:
    """An ISO time in UTC from `30m`, `12h`, `90d` or a time with an offset. Raises UsageError."""
    if match := _DURATION.fullmatch(text):
        return (now + timedelta(**{_UNITS[match[2]]: int(match[1])})).isoformat()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment <= now:
        raise UsageError(
            f"{text!r} is not a time to come. Right would be 30m, 12h, 90d, or a time with "
            "its offset such as 2027-01-31T00:00:00Z."
        )
    return moment.astimezone(UTC).isoformat()


def parse_seconds(text: str) -> int:
    """Seconds of `0`, `30m`, `12h` or `7d`. Raises UsageError."""
    if text == "0":
        return 0
    if match := _DURATION.fullmatch(text):
        return int(timedelta(**{_UNITS[match[2]]: int(match[1])}).total_seconds())
    raise UsageError(f"{text!r} is not a duration. Right would be 0, 30m, 12h or 7d.")


def _check_key_id(key_id: str) -> None:
    if re.fullmatch(r"key_[A-Za-z0-9_-]+", key_id):
        return
    hint = (
        " That looks like the key itself; it is not needed here."
        if key_id.startswith("tk-")
        else ""
    )
    raise UsageError(
        f"This is not a key id.{hint} A key id begins with key_; `terrace key list` shows them."
    )


def _shown(name: str, value: object) -> str:
    if name.endswith("_micro_usd") and isinstance(value, int):
        return format_usd(value)
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "none"
    return str(value)


def _names(text: str | None, option: str, example: str) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(
            f"{option} {text!r} has an empty name. Right would be names with single commas, "
            f"for example {example}."
        )
    return names


def _state(key: dict[str, Any], *, now: datetime) -> str:
    if key.get("revoked_at"):
        return "revoked"
    ends = key.get("expires_at")
    return "expired" if ends and datetime.fromisoformat(ends) <= now else "active"


def _limits(key: dict[str, Any]) -> str:
    limits = []
    if key.get("models"):
        limits.append(f"models {','.join(key['models'])}")
    if key.get("budget_micro_usd") is not None:
        limits.append(f"budget {format_usd(key['budget_micro_usd'])}")
    if key.get("max_requests") is not None:
        limits.append(counted(key["max_requests"], "call"))
    if key.get("requests_per_minute") is not None:
        limits.append(f"{key['requests_per_minute']} per minute")
    if key.get("policies"):
        limits.append(f"policies {','.join(key['policies'])}")
    return ", ".join(limits) or "no limits"
