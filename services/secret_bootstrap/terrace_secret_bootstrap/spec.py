"""The spec of the Secrets: parsed strictly, with errors that name the place and hold no value."""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from terrace_secret_bootstrap.secrets_manager import ARN

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_HOLE = re.compile(r"\{([^{}]*)\}")
_MIN_BYTES, _MAX_BYTES = 16, 1024
_KINDS = "random_hex, random_token, template, copy, secrets_manager or existing"


class SpecError(Exception):
    """SECRETS_SPEC is not what it must be. The message names the entry."""


@dataclass(frozen=True, order=True)
class Place:
    """One key of one Secret, written `namespace/name/key`."""

    namespace: str
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.key}"


@dataclass(frozen=True)
class Random:
    """`prefix` and `size` random bytes in hex."""

    size: int
    prefix: str = ""


@dataclass(frozen=True)
class Template:
    """Text with `{namespace/name/key}` holes; a copy is a template of one hole."""

    text: str

    @property
    def sources(self) -> tuple[Place, ...]:
        return tuple(_place(hole, self.text) for hole in _HOLE.findall(self.text))

    def fill(self, values: dict[Place, str]) -> str:
        return _HOLE.sub(lambda hole: values[_place(hole[1], self.text)], self.text)


@dataclass(frozen=True)
class External:
    """A value of AWS Secrets Manager: the whole text, or the one under `json_key`."""

    arn: str
    json_key: str | None = None


@dataclass(frozen=True)
class Existing:
    """A value that somebody else has put there: it is read by later templates, never made."""


Source = Random | Template | External | Existing


@dataclass(frozen=True)
class SecretSpec:
    """One Secret: where it goes and how each of its keys is made."""

    namespace: str
    name: str
    data: dict[str, Source]

    @property
    def existing(self) -> bool:
        """Whether it is a Secret of the user's own; then all of its keys are."""
        return any(isinstance(how, Existing) for how in self.data.values())


def parse(text: str) -> list[SecretSpec]:
    """The Secrets in their order. Raises SpecError.

    A template or copy may only read Secrets before its own, so one pass in order is enough and
    there is no circle.
    """
    try:
        document = json.loads(text)
    except ValueError as malformed:
        raise SpecError(f"SECRETS_SPEC is not JSON: {malformed}") from None
    if not isinstance(document, list) or not document:
        raise SpecError("SECRETS_SPEC must be a list of Secrets with at least one entry")
    entries = cast("list[object]", document)
    secrets: list[SecretSpec] = []
    known: set[Place] = set()
    for position, entry in enumerate(entries):
        secret = _secret(entry, f"entry {position}")
        if any(secret.namespace == p.namespace and secret.name == p.name for p in known):
            raise SpecError(f"entry {position}: {secret.namespace}/{secret.name} is there twice")
        for key, made in secret.data.items():
            for source in made.sources if isinstance(made, Template) else ():
                if source not in known:
                    raise SpecError(
                        f"entry {position}, key {key}: {source} is not a key of a Secret before it"
                    )
        known |= {Place(secret.namespace, secret.name, key) for key in secret.data}
        secrets.append(secret)
    return secrets


def _secret(entry: object, where: str) -> SecretSpec:
    if not isinstance(entry, dict) or set(cast("dict[str, Any]", entry)) != {
        "namespace",
        "name",
        "data",
    }:
        raise SpecError(f"{where} must have exactly the fields namespace, name and data")
    fields = cast("dict[str, Any]", entry)
    namespace, name, data = fields["namespace"], fields["name"], fields["data"]
    for field, value in (("namespace", namespace), ("name", name)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise SpecError(f"{where}: {field} must be a Kubernetes name")
    if not isinstance(data, dict) or not data:
        raise SpecError(f"{where}: data must name at least one key")
    made = {
        key: _made(key, how, f"{where}, key {key}")
        for key, how in cast("dict[str, object]", data).items()
    }
    if len({isinstance(how, Existing) for how in made.values()}) > 1:
        raise SpecError(f"{where}: either all keys exist already or none: a Secret is made whole")
    return SecretSpec(namespace, name, made)


def _made(key: str, how: object, where: str) -> Source:
    if not _KEY.fullmatch(key):
        raise SpecError(f"{where}: not a Secret's key (letters, digits, '-', '_', '.')")
    if not isinstance(how, dict) or len(cast("dict[str, Any]", how)) != 1:
        raise SpecError(f"{where}: must be made in exactly one way: {_KINDS}")
    ((kind, value),) = cast("dict[str, Any]", how).items()
    if kind == "random_hex":
        return Random(_size(value, where))
    if kind == "random_token":
        token = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": None}
        if not set(token) <= {"prefix", "bytes"}:
            raise SpecError(f"{where}: random_token takes prefix and bytes")
        prefix = token.get("prefix", "")
        if not isinstance(prefix, str):
            raise SpecError(f"{where}: random_token's prefix must be text")
        return Random(_size(token.get("bytes"), where), prefix)
    if kind == "copy" and isinstance(value, str):
        _place(value, value, where)
        return Template("{" + value + "}")
    if kind == "template" and isinstance(value, str):
        if set("{}") & set(_HOLE.sub("", value)):
            raise SpecError(f"{where}: a brace without its partner")
        for hole in _HOLE.findall(value):
            _place(hole, value, where)
        return Template(value)
    if kind == "secrets_manager":
        return external_of(value, where)
    if kind == "existing" and value is True:
        return Existing()
    raise SpecError(f"{where}: {kind!r} is not a way to make a value; use {_KINDS}")


def external_of(value: object, where: str) -> External:
    """`{"arn": ..., "json_key": ...}`, checked. Raises SpecError that names `where`."""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": None}
    if not {"arn"} <= set(fields) <= {"arn", "json_key"}:
        raise SpecError(f"{where}: secrets_manager takes arn and, if need be, json_key")
    arn, json_key = fields["arn"], fields.get("json_key")
    if not isinstance(arn, str) or not ARN.fullmatch(arn):
        raise SpecError(
            f"{where}: arn must be arn:<partition>:secretsmanager:<region>:<account>:secret:<name>"
        )
    if json_key is not None and (not isinstance(json_key, str) or not json_key):
        raise SpecError(f"{where}: json_key must be the name of a member of the secret's JSON")
    return External(arn, json_key)


def _size(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{where}: the number of random bytes must be a whole number")
    if not _MIN_BYTES <= value <= _MAX_BYTES:
        raise SpecError(f"{where}: between {_MIN_BYTES} and {_MAX_BYTES} random bytes, not {value}")
    return value


def _place(text: str, whole: str, where: str = "") -> Place:
    parts = text.split("/")
    if len(parts) != 3 or not all(parts):
        raise SpecError(f"{where or whole}: {text!r} must be namespace/name/key")
    return Place(*parts)
