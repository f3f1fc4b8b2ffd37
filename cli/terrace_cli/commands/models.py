"""models: what the gateway offers, why a request goes where it goes, and whether prices drift."""

import json
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from terrace_cli.errors import ExitCode, MachineError, UsageError
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.money import format_usd
from terrace_cli.output import counted, emit_json, emit_table
from terrace_cli.places import repository
from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.one_line import one_line
from terrace_common.prices.cost_map import Drift, compare

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
spec_option = click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The governance file.",
)
map_option = click.option(
    "--map",
    "map_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="LiteLLM's prices, as `python -m terrace_translator.price_map SPEC` prints them; "
    "without it that is run in this clone.",
)


@click.group("models")
def models_command() -> None:
    """Models: list, explain where a request goes, compare prices."""


@models_command.command("list")
@json_option
def models_list(as_json: bool) -> None:
    """The models in force, with their prices per million tokens."""
    with GatewayAdmin.connect() as admin:
        answer = admin.models()
    if as_json:
        emit_json(answer)
        return
    away = set(answer.get("not_deployed", ()))
    emit_table(
        ("model", "provider", "context", "input", "output", "notes"),
        [
            (
                model["name"],
                model["provider"],
                str(model["context_tokens"]),
                format_usd(model["price"]["input_micro_usd_per_mtok"]),
                format_usd(model["price"]["output_micro_usd_per_mtok"]),
                ", ".join(_notes(model, away=model["name"] in away)) or "-",
            )
            for model in answer["models"]
        ],
    )
    click.echo(f"prices of version {answer['price_version']}")


@models_command.command("explain")
@click.option(
    "--request",
    "request_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A JSON file: a body as a client sends it, or what `POST /admin/v1/models/explain` takes.",
)
@click.option("--key-id", help="Under this key's policies; without it nothing is forbidden.")
@click.option("--hints", help="As in the header x-terrace-hints.")
@json_option
def models_explain(request_file: Path, key_id: str | None, hints: str | None, as_json: bool) -> int:
    """Which models could serve a request, and why. Calls nothing.

    Exit code 1 when none could.
    """
    asked = question(_read_object(request_file), size=request_file.stat().st_size)
    if key_id is not None:
        asked["key_id"] = key_id
    if hints is not None:
        asked["hints"] = hints
    with GatewayAdmin.connect() as admin:
        answer = admin.explain(asked)
    if as_json:
        emit_json(answer)
    else:
        _show(answer)
    return ExitCode.DONE if answer["chosen"] else ExitCode.CHECK_FAILED


@models_command.command("drift")
@spec_option
@map_option
@click.option("--tolerance", default="1", show_default=True, help="Percent that may differ.")
@json_option
def models_drift(spec: Path, map_file: Path | None, tolerance: str, as_json: bool) -> int:
    """Compare the prices of a governance file with LiteLLM's bundled map.

    Exit code 1 when a price differs by more than the tolerance, or is missing.
    """
    governance = read_spec(spec)
    known = read_map(spec, map_file)
    try:
        allowed = Decimal(tolerance)
    except ArithmeticError:
        allowed = Decimal(-1)
    if not allowed.is_finite() or allowed < 0:
        raise UsageError(f"--tolerance {tolerance!r} is not a number of percent such as 1 or 0.5.")
    found: list[Drift] = []
    for model in governance.models:
        entry = known["models"].get(model.name, {}).get("entry", {})
        found += compare(
            model.name,
            model.price,
            entry,
            context_tokens=model.context_tokens,
            tolerance_percent=allowed,
        )
    wrong = [drift for drift in found if drift.kind in ("differs", "missing")]
    if as_json:
        emit_json({"litellm": known["litellm"], "drift": [drift.as_dict() for drift in found]})
    else:
        _show_drift(found, models=len(governance.models), litellm=str(known["litellm"]))
    return ExitCode.CHECK_FAILED if wrong else ExitCode.DONE


def question(body: dict[str, Any], *, size: int) -> dict[str, Any]:
    """What the admin API is asked about a client's body of ``size`` bytes (or as it is, if it is
    a question already)."""
    if "input_bytes" in body or "surface" in body:
        return dict(body)
    if not isinstance(body.get("model"), str):
        raise UsageError('The request has no "model": right would be a body such as a client\'s.')
    wanted = next(
        (body[name] for name in ("max_completion_tokens", "max_output_tokens", "max_tokens")
         if body.get(name) is not None),
        None,
    )  # fmt: skip
    answer = body.get("response_format")
    features = {
        "streaming": body.get("stream") is True,
        "tools": bool(body.get("tools")),
        "json_schema": isinstance(answer, dict) and answer.get("type") == "json_schema",
        "reasoning": body.get("reasoning_effort") is not None or body.get("reasoning") is not None,
        "images": _has_image(body.get("messages")) or _has_image(body.get("input")),
    }
    asked: dict[str, Any] = {
        "model": body["model"],
        "surface": "chat" if "messages" in body else "responses",
        "input_bytes": size,
        "features": [name for name, present in features.items() if present],
    }
    if wanted is not None:
        asked["max_output_tokens"] = wanted
    return asked


def read_spec(file: Path) -> Governance:
    """The governance file. Raises UsageError with its problems."""
    try:
        return load_governance(file.read_text(encoding="utf-8"), str(file))
    except (GovernanceError, UnicodeDecodeError) as error:
        raise UsageError(str(error)) from None


def read_map(spec: Path, map_file: Path | None) -> dict[str, Any]:
    """LiteLLM's prices of the models of ``spec``, numbers as Decimal."""
    if map_file is not None:
        text = map_file.read_text(encoding="utf-8")
    else:
        python = repository() / ".venv-translator" / "bin" / "python"
        if not python.exists():
            raise MachineError(
                "This clone has no .venv-translator to ask LiteLLM in. Run `make env-translator`, "
                "or give --map a file that `python -m terrace_translator.price_map` printed."
            )
        run = subprocess.run(
            [str(python), "-m", "terrace_translator.price_map", str(spec)],
            check=False,
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            raise UsageError(f"The prices of LiteLLM cannot be read: {run.stderr.strip()}")
        text = run.stdout
    try:
        document = json.loads(text, parse_float=Decimal)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("models"), dict):
        raise UsageError(f"{map_file} is not what `python -m terrace_translator.price_map` prints.")
    return {"litellm": "?", **document}


def _show(answer: dict[str, Any]) -> None:
    refusal = answer.get("refusal")
    if refusal:
        click.echo(one_line(f"refused with {refusal['code']}: {refusal['message']}"))
    else:
        click.echo(f"{answer['asked']} goes to {answer['chosen']}")
    emit_table(
        ("rank", "model", "provider", "estimated", "why"),
        [
            (
                str(model["rank"] or "-"),
                model["model"],
                model["provider"],
                format_usd(model["estimated_micro_usd"]),
                f"{model['via']}" if model["rank"] else f"out: {model['detail']}",
            )
            for model in answer["models"]
        ],
    )


def _show_drift(found: list[Drift], *, models: int, litellm: str) -> None:
    says = {
        "differs": "differs",
        "missing": "has no price of ours",
        "not_in_map": "is not in the map",
        "not_in_price_map": "has no price in the map",
    }
    if found:
        emit_table(
            ("model", "what", "ours", "the map's", "percent", "says"),
            [
                (
                    drift.model,
                    drift.what,
                    "-" if drift.ours is None else str(drift.ours),
                    "-" if drift.theirs is None else str(drift.theirs),
                    "-" if drift.percent is None else f"{drift.percent:+.2f}",
                    says[drift.kind],
                )
                for drift in found
            ],
        )
    click.echo(
        f"{counted(models, 'model')} compared with LiteLLM {litellm}:"
        f" {counted(len(found), 'difference')}."
    )


def _notes(model: dict[str, Any], *, away: bool) -> list[str]:
    notes = ["not deployed"] if away else []
    if model.get("hidden"):
        notes.append("hidden")
    if model.get("fallbacks"):
        notes.append(f"falls back to {', '.join(model['fallbacks'])}")
    if model.get("canary"):
        notes.append(f"{model['canary']['percent']} % to {model['canary']['model']}")
    return notes


def _read_object(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{file} is not a JSON object.")
    return document


def _has_image(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_image(item) for item in value)
    if isinstance(value, dict):
        return str(value.get("type")) in ("image", "image_url", "input_image") or _has_image(
            value.get("content")
        )
    return False
