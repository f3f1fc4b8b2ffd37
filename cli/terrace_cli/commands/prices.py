"""prices: price books, their versions, and what past calls would have cost."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

from terrace_cli.commands.models import json_option, map_option, read_map, read_spec, spec_option
from terrace_cli.errors import ExitCode, UsageError
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.money import format_usd
from terrace_cli.output import counted, emit_json, emit_table
from terrace_common.prices import PriceBook, PriceBookError, load_price_book
from terrace_common.prices.cost_map import price_of_entry

reason_option = click.option("--reason", required=True, help="Kept with the change.")
file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group("prices")
def prices_command() -> None:
    """Price books: list, check, apply, go back, re-rate."""


@prices_command.command("list")
@json_option
def prices_list(as_json: bool) -> None:
    """Every price book, and which one is in force."""
    with GatewayAdmin.connect() as admin:
        answer = admin.price_books()
    if as_json:
        emit_json(answer)
        return
    if answer["books"]:
        emit_table(
            ("version", "entries", "by", "at", "in force"),
            [
                (
                    book["version"],
                    str(book["entries"]),
                    book["actor"],
                    book["created_at"],
                    "yes" if book["in_force"] else "-",
                )
                for book in answer["books"]
            ],
        )
    used = answer["in_force"]
    spec = f"the governance spec's own prices, version {answer['spec_price_version']}"
    click.echo(f"in force: {f'book {used}, and where it has none, ' if used else ''}{spec}")


@prices_command.command("check")
@file_argument
@json_option
def prices_check(file: Path, as_json: bool) -> None:
    """Validate a price book. Asks nothing of the gateway."""
    book = _read_book(file)
    if as_json:
        emit_json(book.model_dump(mode="json"))
    else:
        click.echo(f"{file}: version {book.version}, {counted(len(book.entries), 'price')}.")


@prices_command.command("apply")
@file_argument
@reason_option
@json_option
def prices_apply(file: Path, reason: str, as_json: bool) -> None:
    """Put a price book in force. Running calls keep the price that they began with."""
    book = _read_book(file)
    with GatewayAdmin.connect() as admin:
        answer = admin.apply_prices(book.model_dump(mode="json"), reason=reason)
    _say_state(answer, as_json=as_json)


@prices_command.command("use")
@click.argument("version")
@reason_option
@json_option
def prices_use(version: str, reason: str, as_json: bool) -> None:
    """Go back to a book by its version, or to the governance spec's own prices: `spec`."""
    with GatewayAdmin.connect() as admin:
        answer = admin.use_prices(None if version == "spec" else version, reason=reason)
    _say_state(answer, as_json=as_json)


@prices_command.command("seed")
@spec_option
@map_option
@click.option("--version", required=True, help="The version of the book to make.")
def prices_seed(spec: Path, map_file: Path | None, version: str) -> None:
    """Print a price book made of LiteLLM's bundled map for the models of a governance file.

    Read it before it is applied: the map is a second opinion, not the provider's bill.
    """
    governance = read_spec(spec)
    known = read_map(spec, map_file)["models"]
    entries: list[dict[str, Any]] = []
    for model in governance.models:
        price = price_of_entry(known.get(model.name, {}).get("entry", {}))
        if price is None:
            click.echo(f"{model.name} is not in the map; it keeps its own price.", err=True)
            continue
        entries.append(
            {
                "provider": model.provider,
                "model": model.upstream_model,
                "effective_from": datetime(2000, 1, 1, tzinfo=UTC).isoformat(),
                "price": price.model_dump(mode="json", exclude_defaults=True),
            }
        )
    if not entries:
        raise UsageError("The map has no price for any model of this file.")
    document = {"version": version, "entries": entries}
    click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


@prices_command.command("rerate")
@click.option("--version", required=True, help="The price book to count with.")
@click.option("--since", required=True, help="Calls from this time on, with its offset.")
@click.option("--until", required=True, help="Calls before this time, with its offset.")
@click.option("--model", help="Only this model's calls.")
@click.option("--write", is_flag=True, help="Append `rerating` entries to the ledger.")
@click.option("--reason", help="Kept with the entries; required with --write.")
@json_option
def prices_rerate(  # noqa: PLR0917  click passes them by name
    version: str,
    since: str,
    until: str,
    model: str | None,
    write: bool,
    reason: str | None,
    as_json: bool,
) -> int:
    """What past calls would have cost at a price book's prices.

    Without --write nothing changes. Budgets do not move: a cap was held at the price of its day.
    """
    if write and not reason:
        raise UsageError("--write needs a --reason: it is kept with each entry.")
    question: dict[str, Any] = {
        "version": version,
        "since": _moment("--since", since),
        "until": _moment("--until", until),
        "write": write,
    }
    question |= {"model": model} if model else {}
    question |= {"reason": reason} if reason else {}
    total: dict[str, Any] = {"attempts": 0, "not_priced": 0, "changed": 0, "written": 0,
                             "delta_micro_usd": 0, "by_model": {}}  # fmt: skip
    with GatewayAdmin.connect() as admin:
        while True:
            page = admin.rerate(question)
            for name in ("attempts", "not_priced", "changed", "written", "delta_micro_usd"):
                total[name] += page[name]
            for name, delta in page["by_model"].items():
                total["by_model"][name] = total["by_model"].get(name, 0) + delta
            if page["next"] is None:
                break
            question["after"] = page["next"]
    if as_json:
        emit_json({"version": version, **total})
        return ExitCode.DONE
    if total["by_model"]:
        emit_table(
            ("model", "difference"),
            [(name, format_usd(delta)) for name, delta in sorted(total["by_model"].items())],
        )
    click.echo(
        f"{counted(total['attempts'], 'attempt')}: {total['changed']} would cost other than they"
        f" did, {format_usd(total['delta_micro_usd'])} in all; {total['not_priced']} have no price"
        f" in {version}; entries written: {total['written']}."
    )
    return ExitCode.DONE


def _read_book(file: Path) -> PriceBook:
    try:
        return load_price_book(file.read_text(encoding="utf-8"), str(file))
    except (PriceBookError, UnicodeDecodeError) as error:
        raise UsageError(str(error)) from None


def _say_state(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(answer)
        return
    used = answer["in_force"] or "the governance spec's own prices"
    click.echo(f"{used}: {'now in force' if answer['state'] == 'applied' else 'was in force'}.")


def _moment(option: str, text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            f"{option} {text!r} is not a time. Right would be a time with its offset such as "
            "2026-11-30T00:00:00Z."
        )
    return moment.astimezone(UTC).isoformat()
