"""`terrace budgets` and `terrace alerts`: what caps have used, and which thresholds were passed."""

from typing import Any

import click

from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.money import format_usd
from terrace_cli.output import counted, emit_json, emit_table

SCOPES = ("org", "team", "user", "app", "key", "model", "provider")
UNITS = {60: "minute", 3_600: "hour", 86_400: "day", 604_800: "week"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.command("budgets")
@click.option("--scope", type=click.Choice(SCOPES), help="Only caps of such subjects.")
@click.option("--id", "scope_id", help="Only caps of this one: a name, or a key's id.")
@click.option("--over", type=click.IntRange(0, 100), default=0, help="Only from this percentage.")
@json_option
def budgets_command(scope: str | None, scope_id: str | None, over: int, as_json: bool) -> None:
    """List budgets and quotas with what their windows have used.

    Used is what the ledger has settled. Held is what the gateway's replicas have taken of the rest:
    what their running calls reserved, and room ahead of the next calls, which goes back unused.
    Percent counts both, as refusals and alerts do; the fullest come first.
    """
    with GatewayAdmin.connect() as admin:
        caps = [_with_use(cap) for cap in admin.caps(scope, scope_id) if cap["amount"] is not None]
    shown = sorted(
        (cap for cap in caps if _reaches(cap, over)),
        key=lambda cap: (-_share(cap), cap["scope"], cap["scope_id"], cap["dimension"]),
    )
    if as_json:
        emit_json({"budgets": shown})
        return
    if shown:
        emit_table(
            ("scope", "dimension", "window", "used", "held", "amount", "percent", "ends"),
            [
                (
                    f"{cap['scope']} {cap['scope_id']}",
                    cap["dimension"] + (" (audit)" if cap["mode"] == "audit" else ""),
                    _window(cap),
                    _quantity(cap["dimension"], cap["used"]),
                    _quantity(cap["dimension"], cap["held"]),
                    _quantity(cap["dimension"], cap["amount"]),
                    "-" if cap["percent"] is None else f"{cap['percent']} %",
                    cap["window_ends"] or "-",
                )
                for cap in shown
            ],
        )
    click.echo(f"{counted(len(shown), 'budget')}.")


@click.command("alerts")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only alerts after this one.")
@json_option
def alerts_command(after: int, as_json: bool) -> None:
    """List thresholds of budgets that were passed, oldest first.

    A threshold is told once per window, and again when its amount was raised above the use.
    """
    with GatewayAdmin.connect() as admin:
        alerts = list(admin.alerts(after))
    if as_json:
        emit_json({"alerts": alerts})
        return
    if alerts:
        emit_table(
            ("alert", "when", "scope", "dimension", "window", "passed", "used", "amount", "told"),
            [
                (
                    str(alert["alert_id"]),
                    alert["raised_at"],
                    f"{alert['scope']} {alert['scope_id']}",
                    alert["dimension"] + (" (audit)" if alert["mode"] == "audit" else ""),
                    alert["window"],
                    f"{alert['percent']} %",
                    _quantity(alert["dimension"], alert["used"]),
                    _quantity(alert["dimension"], alert["amount"]),
                    _told(alert),
                )
                for alert in alerts
            ],
        )
    click.echo(f"{counted(len(alerts), 'alert')}.")


def _with_use(cap: dict[str, Any]) -> dict[str, Any]:
    use = {"used": cap["settled"], "held": cap["outstanding"]}
    taken = _taken({**cap, **use})
    return {**cap, **use, "percent": taken * 100 // cap["amount"] if cap["amount"] else None}


def _taken(cap: dict[str, Any]) -> int:
    return cap["used"] + cap["held"]


def _reaches(cap: dict[str, Any], over: int) -> bool:
    return _taken(cap) * 100 >= over * cap["amount"]


def _share(cap: dict[str, Any]) -> float:
    return _taken(cap) / cap["amount"] if cap["amount"] else 1.0


def _window(cap: dict[str, Any]) -> str:
    if cap["window_kind"] == "calendar":
        return f"{cap['window_unit']} {cap['window_zone']}"
    if cap["window_kind"] == "lifetime":
        return "running" if cap["dimension"] == "concurrency" else "lifetime"
    seconds = cap["window_seconds"]
    return f"{cap['window_kind']} {UNITS.get(seconds, f'{seconds} s')}"


def _quantity(dimension: str, amount: int) -> str:
    return format_usd(amount) if dimension == "micro_usd" else str(amount)


def _told(alert: dict[str, Any]) -> str:
    told = [f"{item['webhook']}: {item['state']}" for item in alert["deliveries"]]
    return ", ".join(told) or ("journal" if alert["recorded_at"] else "-")
