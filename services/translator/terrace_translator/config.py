"""What a translator config may say. Everything else is refused, by name.

LiteLLM has hundreds of switches, and each release adds some that retry, fall back, remember or send
data elsewhere. So this is a list of what is allowed: a retry that LiteLLM makes by itself is an
upstream call that the guard has neither reserved nor recorded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

PROVIDERS = ("openai", "bedrock")
_REFERENCE = "os.environ/"
_SECRETS = ("api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_SECTIONS: dict[str, frozenset[str]] = {
    "router_settings": frozenset({"num_retries", "disable_cooldowns", "timeout", "stream_timeout"}),
    "litellm_settings": frozenset(
        {
            "num_retries",
            "request_timeout",
            "drop_params",
            "telemetry",
            "global_disable_no_log_param",
        }
    ),
    "general_settings": frozenset({"forward_client_headers_to_llm_api"}),
}
_ENTRY = frozenset({"model_name", "litellm_params", "model_info"})
_PARAMETERS = frozenset(
    {"model", "api_base", "timeout", "stream_timeout", "max_retries", "drop_params"}
    | {"aws_region_name", "aws_bedrock_runtime_endpoint", "aws_role_name", "aws_session_name"}
    | set(_SECRETS)
)
_WHY = {
    "retr": "the guard makes every retry, with a reservation of its own",
    "fallback": "the guard makes every fallback, with a reservation of its own",
    "cooldown": "a cooldown lets one tenant's error refuse the calls of others",
    "allowed_fails": "a cooldown lets one tenant's error refuse the calls of others",
    "callback": "callbacks see prompts and send them elsewhere",
    "database": "the translator keeps nothing; keys and budgets are the guard's",
    "redis": "the translator keeps nothing",
    "cache": "a cached answer would be charged as if it had been asked for",
    "master_key": "the translator makes a random one at each start",
}


class ConfigError(Exception):
    """The config asks for something that a translator may not do. The message names the key."""


def load(file: Path) -> dict[str, Any]:
    """The checked config. Raises ConfigError with the file's name, the key and what is allowed."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as missing:
        raise ConfigError(
            f"{file} does not exist; mount the translator's config there"
        ) from missing
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as unreadable:
        raise ConfigError(f"{file} can't be read: {unreadable}") from unreadable
    try:
        return check(document)
    except ConfigError as refused:
        raise ConfigError(f"{file}: {refused}") from None


def check(document: object) -> dict[str, Any]:
    """The document with our own settings filled in, or ConfigError."""
    config = _mapping(document, "the config")
    _only(config, {"model_list", *_SECTIONS}, "")
    for name, allowed in _SECTIONS.items():
        _only(_mapping(config.get(name) or {}, name), allowed, f"{name}.")
    _exactly(config, "router_settings", "num_retries", 0)
    _exactly(config, "router_settings", "disable_cooldowns", True)
    _exactly(config, "litellm_settings", "num_retries", 0)
    _exactly(config, "litellm_settings", "telemetry", False)
    entries = config.get("model_list")
    if not isinstance(entries, list) or not entries:
        raise ConfigError("model_list must name at least one model")
    names: set[str] = set()
    for position, entry in enumerate(cast("list[object]", entries)):
        name = _check_entry(entry, f"model_list[{position}]")
        if name in names:
            # Two deployments under one name are a choice between them: that is routing.
            raise ConfigError(f"model_list[{position}].model_name {name!r} is there twice")
        names.add(name)
    return {
        "model_list": entries,
        "router_settings": {
            **(config.get("router_settings") or {}),
            "num_retries": 0,
            "disable_cooldowns": True,
        },
        "litellm_settings": {
            **(config.get("litellm_settings") or {}),
            "num_retries": 0,
            "telemetry": False,
            # What the guard says of a call goes to Bedrock as the call's metadata, so that
            # Bedrock's log names the attempt on every surface.
            "bedrock_request_metadata_fields": ["spend_logs_metadata"],
        },
        "general_settings": config.get("general_settings") or {},
    }


def providers(config: Mapping[str, Any]) -> list[str]:
    """The kinds of deployment in a checked config, each once, in the order of PROVIDERS."""
    found = {_provider(entry["litellm_params"]["model"]) for entry in config["model_list"]}
    return [provider for provider in PROVIDERS if provider in found]


def referenced_variables(config: Mapping[str, Any]) -> frozenset[str]:
    """The environment variables that a checked config takes credentials from."""
    return frozenset(
        value.removeprefix(_REFERENCE)
        for entry in config["model_list"]
        for value in entry["litellm_params"].values()
        if isinstance(value, str) and value.startswith(_REFERENCE)
    )


def _check_entry(entry: object, where: str) -> str:
    fields = _mapping(entry, where)
    _only(fields, _ENTRY, f"{where}.")
    name = fields.get("model_name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.model_name must be the model's name")
    if "*" in name:
        raise ConfigError(f"{where}.model_name {name!r} is a wildcard; name each model")
    parameters = _mapping(fields.get("litellm_params"), f"{where}.litellm_params")
    _only(parameters, _PARAMETERS, f"{where}.litellm_params.")
    model = parameters.get("model")
    if not isinstance(model, str) or _provider(model) not in PROVIDERS:
        raise ConfigError(
            f"{where}.litellm_params.model must be one of "
            + ", ".join(f"{provider}/<id>" for provider in PROVIDERS)
            + f", not {model!r}"
        )
    if parameters.get("max_retries") not in (None, 0):
        raise ConfigError(f"{where}.litellm_params.max_retries must be 0: {_WHY['retr']}")
    for key in _SECRETS:
        value = parameters.get(key)
        if value is not None and not (isinstance(value, str) and value.startswith(_REFERENCE)):
            raise ConfigError(
                f"{where}.litellm_params.{key} must be a reference like {_REFERENCE}NAME, "
                "not a value: the config is no place for a secret"
            )
    return name


def _provider(model: str) -> str:
    provider, slash, identifier = model.partition("/")
    return provider if slash and identifier else ""


def _mapping(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        mapping = cast("dict[object, Any]", value)
        if all(isinstance(key, str) for key in mapping):
            return cast("dict[str, Any]", mapping)
    raise ConfigError(f"{where} must be a mapping of names to values")


def _only(found: Mapping[str, Any], allowed: frozenset[str] | set[str], where: str) -> None:
    for key in found:
        if key not in allowed:
            reason = next((why for part, why in _WHY.items() if part in key.lower()), None)
            because = f" ({reason})" if reason else ""
            raise ConfigError(
                f"{where}{key} is not allowed in a translator{because}; allowed here: "
                + ", ".join(sorted(allowed))
            )


def _exactly(config: Mapping[str, Any], section: str, key: str, wanted: object) -> None:
    value: object = _mapping(config.get(section) or {}, section).get(key, wanted)
    # `is`-like: 0 is not False here.
    if value != wanted or isinstance(value, bool) is not isinstance(wanted, bool):
        reason = next((why for part, why in _WHY.items() if part in key), "it sends data elsewhere")
        shown = str(wanted).lower() if isinstance(wanted, bool) else wanted
        raise ConfigError(f"{section}.{key} must be {shown}, not {value!r}: {reason}")
