"""Commands for people and tests: what exists, what was called, what was assumed, and faults to
order."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from . import faults
from .inventory import DIRECTORY_VARIABLE, Inventory, Item


def main(arguments: list[str]) -> int:
    """Exit code 0, or 2 for a wrong command line."""
    options = _parser().parse_args(arguments)
    inventory = Inventory(Path(options.directory).absolute() if options.directory else None)
    try:
        result: int = options.run(inventory, options)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulated_cloud", description=__doc__)
    parser.add_argument(
        "--directory", help=f"where the cloud lives (default: ${DIRECTORY_VARIABLE})"
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    inventory = commands.add_parser("inventory", help="what exists")
    inventory.add_argument("--json", action="store_true")
    inventory.add_argument("--type", default="", help="only types that start with this")
    inventory.set_defaults(run=_inventory)

    calls = commands.add_parser("calls", help="the books: every call and its outcome")
    calls.add_argument("--json", action="store_true")
    calls.set_defaults(run=_calls)

    assumed = commands.add_parser(
        "assumed", help="children of components that were made by assumption"
    )
    assumed.add_argument("--json", action="store_true")
    assumed.set_defaults(run=_assumed)

    fault = commands.add_parser(
        "fault", help="let calls fail, or list (--list) or drop (--clear) what was ordered"
    )
    fault.add_argument("kind", nargs="?", choices=faults.KINDS)
    fault.add_argument("--operation", default="create", choices=faults.OPERATIONS)
    fault.add_argument("--type", default="*", help="a pattern, e.g. 'aws:eks/*'")
    fault.add_argument(
        "--name", default="*", help="a pattern for the resource's name in the program"
    )
    fault.add_argument("--times", type=int, default=1)
    fault.add_argument("--seconds", type=float, default=0.0)
    fault.add_argument("--message", default="")
    fault.add_argument("--list", action="store_true")
    fault.add_argument("--clear", action="store_true")
    fault.set_defaults(run=_fault)

    add = commands.add_parser(
        "add", help="put something there that no Pulumi program made, e.g. an existing VPC"
    )
    add.add_argument("type")
    add.add_argument("id")
    add.add_argument("inputs", help="JSON with the provider's property names")
    add.add_argument("--account", default="123456789012")
    add.add_argument("--region", default="us-east-1")
    add.set_defaults(run=_add)

    remove = commands.add_parser("remove", help="take something away behind Pulumi's back")
    remove.add_argument("id")
    remove.set_defaults(run=_remove)

    reset = commands.add_parser("reset", help="forget everything")
    reset.set_defaults(run=_reset)
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _inventory(inventory: Inventory, options: argparse.Namespace) -> int:
    items = [item for item in inventory.items() if item.type.startswith(options.type)]
    if options.json:
        _say(json.dumps([asdict(item) for item in items], indent=2))
        return 0
    for item in items:
        _say(f"{item.type:<55} {item.id:<45} {item.scope}")
    waiting = inventory.pending()
    _say(
        f"{len(items)} items" + (f", {len(waiting)} more scheduled for deletion" if waiting else "")
    )
    return 0


def _calls(inventory: Inventory, options: argparse.Namespace) -> int:
    calls = inventory.calls()
    if options.json:
        _say(json.dumps([asdict(call) for call in calls], indent=2))
        return 0
    for call in calls:
        _say(
            f"{call.number:>5} {call.operation:<7} {call.type:<50} {call.id or call.name:<45}"
            f" {call.outcome}"
        )
    return 0


def _assumed(inventory: Inventory, options: argparse.Namespace) -> int:
    rows = inventory.assumed()
    if options.json:
        _say(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        _say(f"{row['parent']} -> {row['type']} {row['name']}: {row['reason']}")
    _say(f"{len(rows)} assumed")
    return 0


def _fault(inventory: Inventory, options: argparse.Namespace) -> int:
    if options.clear:
        faults.clear(inventory)
        return 0
    if options.list or options.kind is None:
        for fault in faults.ordered(inventory):
            _say(
                f"{fault.kind} on {fault.operation} of {fault.type} {fault.name}, {fault.remaining}"
                " more"
            )
        return 0
    faults.order(
        inventory,
        faults.Fault(
            options.kind,
            options.operation,
            options.type,
            options.name,
            options.times,
            options.seconds,
            options.message,
        ),
    )
    return 0


def _add(inventory: Inventory, options: argparse.Namespace) -> int:
    from .seed import add_item

    item: Item = add_item(
        inventory,
        options.type,
        options.id,
        json.loads(options.inputs),
        account=options.account,
        region=options.region,
    )
    _say(f"{item.type} {item.id}")
    return 0


def _remove(inventory: Inventory, options: argparse.Namespace) -> int:
    found = inventory.items(id=options.id)
    if not found:
        raise ValueError(f"id: {options.id!r} does not exist")
    for item in found:
        inventory.remove(item)
    return 0


def _reset(inventory: Inventory, options: argparse.Namespace) -> int:
    del options
    inventory.reset()
    return 0
