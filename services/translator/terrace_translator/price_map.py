"""``python -m terrace_translator.price_map SPEC``: what LiteLLM's bundled map says of the models of
a governance spec, as one JSON document. Reads files only: LiteLLM is not imported.

``{"litellm": version, "models": {name: {"key": key of the map or null, "entry": {...}}}}``; an
entry has the fields about costs and limits, numbers as the map has them (USD per token).
"""

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import yaml

MAP_FILE = "model_prices_and_context_window_backup.json"
_KEPT = ("max_input_tokens", "max_output_tokens", "mode", "litellm_provider", "deprecation_date")


class PriceMapError(Exception):
    """The map or the spec cannot be read; the message says which and why."""


def bundled_map() -> dict[str, Any]:
    """LiteLLM's map as it was installed. Raises ``PriceMapError``."""
    found = find_spec("litellm")
    if found is None or not found.submodule_search_locations:
        raise PriceMapError("LiteLLM is not installed here")
    file = Path(found.submodule_search_locations[0]) / MAP_FILE
    try:
        return cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise PriceMapError(f"{file.name} can't be read: {type(error).__name__}") from error


def prices_of(spec: object, known: Mapping[str, Any]) -> dict[str, Any]:
    """What ``known`` says of each model of a spec (plain data of the YAML file).

    Raises ``PriceMapError`` for a spec without models and providers.
    """
    try:
        sections = cast("dict[str, list[dict[str, Any]]]", spec)
        kinds = {provider["name"]: provider for provider in sections["providers"]}
        return {
            str(model["name"]): _price(model, kinds[model["provider"]], known)
            for model in sections["models"]
        }
    except (KeyError, TypeError) as error:
        raise PriceMapError(
            f"the spec is not a governance spec ({type(error).__name__}: {error});"
            " `terrace governance validate` says what is wrong"
        ) from error


def _price(
    model: Mapping[str, Any], provider: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    for key in _keys(model, provider):
        entry = known.get(key)
        if isinstance(entry, dict):
            fields = cast("dict[str, Any]", entry).items()
            kept = {name: value for name, value in fields if "cost" in name or name in _KEPT}
            return {"key": key, "entry": kept}
    return {"key": None, "entry": {}}


def _keys(model: Mapping[str, Any], provider: Mapping[str, Any]) -> Iterator[str]:
    """The names that the map may have the model under, the closest first."""
    names = [str(model[field]) for field in ("base_model", "upstream_model") if model.get(field)]
    for name in names:
        short = name.rpartition("/")[2] if name.startswith("arn:") else name
        if provider.get("kind") == "bedrock":
            yield f"bedrock/{provider.get('region')}/{short}"
            yield short
            yield f"bedrock/{short}"
        else:
            yield f"openai/{short}"
            yield short


def main(arguments: list[str]) -> int:
    """Print the document. 0 done, 2 the spec or the map cannot be read."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m terrace_translator.price_map GOVERNANCE_FILE\n")
        return 2
    try:
        text = Path(arguments[0]).read_text(encoding="utf-8")
        found = prices_of(yaml.safe_load(text), bundled_map())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, PriceMapError) as error:
        sys.stderr.write(f"price_map: {error}\n")
        return 2
    document = {"litellm": version("litellm"), "models": found}
    sys.stdout.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
