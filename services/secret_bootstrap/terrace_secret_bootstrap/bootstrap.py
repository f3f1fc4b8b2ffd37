"""Creates the Secrets of a spec, each once. Killed at any moment, the next run ends the same."""

import base64
import binascii
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from terrace_secret_bootstrap.spec import (
    Existing,
    External,
    Place,
    Random,
    SecretSpec,
    Source,
    Template,
)


class SecretStore(Protocol):
    def read_secret(self, namespace: str, name: str) -> dict[str, str] | None: ...
    def create_secret(self, namespace: str, name: str, data: dict[str, str]) -> bool: ...


class ExternalSecrets(Protocol):
    def value(self, arn: str, json_key: str | None = None) -> str: ...


class KeyMissingError(Exception):
    """A Secret that must exist does not, or lacks a key that the spec asks for."""


def bootstrap(
    specs: Sequence[SecretSpec],
    store: SecretStore,
    *,
    external: ExternalSecrets,
    say: Callable[[str], None],
) -> None:
    """In order, so that what a template reads is there. `say` gets names, never values.

    A Secret is created whole by one call, so there is none with half of its keys; what exists is
    kept as it is and is what later templates read. Raises KeyMissingError for an existing Secret
    without a key of the spec: overwriting could cut off data that is encrypted or guarded by it.
    `external` is asked only for what a Secret that does not exist yet is made of.
    """
    values: dict[Place, str] = {}
    for spec in specs:
        label = f"{spec.namespace}/{spec.name}"
        existing = store.read_secret(spec.namespace, spec.name)
        if existing is None and spec.existing:
            raise KeyMissingError(
                f"Secret {label} must be there already, with the keys {', '.join(spec.data)}:"
                " make it, then run this again"
            )
        if existing is None:
            made = {key: _make(how, values, external) for key, how in spec.data.items()}
            encoded = {
                key: base64.b64encode(value.encode()).decode() for key, value in made.items()
            }
            if store.create_secret(spec.namespace, spec.name, encoded):
                say(f"{label}: created")
                existing = encoded
            else:
                # Another run was first: its values are the ones that count.
                existing = store.read_secret(spec.namespace, spec.name) or {}
                say(f"{label}: was created by another run, kept")
        else:
            say(f"{label}: exists, kept")
        values |= _decoded(spec, existing)


def _make(how: Source, values: dict[Place, str], external: ExternalSecrets) -> str:
    match how:
        case Random():
            return how.prefix + secrets.token_hex(how.size)
        case Template():
            return how.fill(values)
        case External():
            return external.value(how.arn, how.json_key)
        case Existing():
            raise AssertionError("a Secret that exists is not made")


def _decoded(spec: SecretSpec, data: dict[str, str]) -> dict[Place, str]:
    found: dict[Place, str] = {}
    for key in spec.data:
        if key not in data:
            raise KeyMissingError(
                f"Secret {spec.namespace}/{spec.name} exists without the key {key!r}; add the key, "
                "or delete the Secret if nothing was stored under it, and run this again"
            )
        try:
            found[Place(spec.namespace, spec.name, key)] = base64.b64decode(
                data[key], validate=True
            ).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise KeyMissingError(
                f"Secret {spec.namespace}/{spec.name}: the value of {key!r} is not text"
            ) from None
    return found
