"""What is wrong with a setting, as one sentence that names the key and what would be right."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from terrace_blueprints.spelling import nearest

NAMESPACE = "terrace"
URL = r"^https?://[^/\s]+"
REGION = r"^[a-z]{2}(-[a-z]+)+-\d$"
SECRET_ARN = r"^arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:\S+$"  # noqa: S105
KEY_ARN = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[0-9a-zA-Z-]+$"
SECRET_NAME = r"^[a-z0-9-]+/[a-z0-9.-]+$"  # noqa: S105
VARIABLE = r"^[A-Z][A-Z0-9_]*$"
STACK_NAME = r"^[A-Za-z0-9_.-]+$"
HOST = r"^[A-Za-z0-9.-]+$"
DIRECTORY = r"^/"
BUCKET = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
_PATTERNS_IN_WORDS = {
    URL: "must be http(s)://host[:port]",
    REGION: "must be an AWS region such as us-east-1",
    SECRET_ARN: "must be the ARN of a secret in Secrets Manager "
    "(arn:aws:secretsmanager:<region>:<account>:secret:<name>)",
    KEY_ARN: "must be the ARN of a KMS key (arn:aws:kms:<region>:<account>:key/<id>)",
    SECRET_NAME: "must be namespace/name of a Kubernetes Secret",
    VARIABLE: "must be upper-case letters, digits and '_', beginning with a letter",
    STACK_NAME: "must be the name of a stack of this project",
    HOST: "must be a host name or an address",
    DIRECTORY: "must be an absolute directory",
    BUCKET: "must be the name of a bucket",
}


class SettingProblemError(ValueError):
    """A problem at a key below, or beside, the one that is being checked."""

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(message)


def sentence(model: type[BaseModel], detail: ErrorDetails) -> str:
    """``terrace:key.nested: what is wrong``, out of what pydantic found in ``model``."""
    location = [part for part in detail["loc"] if part != "[key]"]
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, SettingProblemError):
        location += [error.path] if error.path else []
    return f"{_key(location)}: {_what(model, detail)}"


def unknown_keys(names: Iterable[str], valid: tuple[str, ...]) -> str:
    """Top-level keys that there are not, each with the one that was probably meant."""
    return "; ".join(_unknown(name, valid) for name in sorted(names))


def _unknown(name: str, valid: tuple[str, ...]) -> str:
    near = nearest(name, valid)
    hint = f" (did you mean '{NAMESPACE}:{near}'?)" if near else ""
    return f"unknown key '{NAMESPACE}:{name}'{hint}"


def _key(location: list[Any]) -> str:
    key = ".".join(str(part) for part in location)
    return key if ":" in key else f"{NAMESPACE}:{key}"


def _what(model: type[BaseModel], detail: ErrorDetails) -> str:
    kind, given = detail["type"], detail["input"]
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        valid = sorted(_names(_section(model, detail["loc"][:-1])))
        near = nearest(str(detail["loc"][-1]), valid)
        hint = f"; did you mean {near}?" if near else ""
        return f"unknown key{hint} Valid here: {', '.join(valid)}"
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        return f"must be a YAML mapping; got {given!r}"
    if detail["loc"] == ("stage",):
        return f"{given!r} is no stage; valid: 1, 2, 3"
    words = _PATTERNS_IN_WORDS.get(detail.get("ctx", {}).get("pattern", ""), detail["msg"])
    return f"{words}; got {given!r}"


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _section(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The model of the nested setting at ``location``."""
    for part in location:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part not in fields:  # a key of a mapping, such as the name of an image
            continue
        annotation = fields[str(part)].annotation
        arms = [annotation, *getattr(annotation, "__args__", ())]
        model = next((a for a in arms if isinstance(a, type) and issubclass(a, BaseModel)), model)
    return model
