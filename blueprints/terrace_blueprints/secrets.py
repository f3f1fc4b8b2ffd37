"""The Secrets of a platform on a substrate. Recipes only: no value is ever here."""

from collections.abc import Sequence
from typing import Any

from terrace_blueprints.substrates.contract import Substrate
from terrace_common.names import (
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    NAMESPACE_PROVIDERS,
    POSTGRES,
    SECRET_PROVIDERS,
    SECRET_SIMULATOR,
)
from terrace_components import aws_gateway_secrets, gateway_secrets
from terrace_components.foundation.secret_bootstrap import SecretArgs

ADMIN_KEYS = ("username", "password")
SECRET_DATABASE_ADMIN = "database-admin"  # noqa: S105  name of a Secret, not one


def platform_secrets(substrate: Substrate) -> list[SecretArgs]:
    """Everything that the bootstrap Job makes, in order: the database's, the guard's, those of the
    model providers. Secrets of somebody else's that it copies from come first."""
    given = substrate.postgres.given
    sources = [c.source for c in substrate.identity.credentials if c.source is not None]
    made = gateway_secrets(f"{POSTGRES.host}:{POSTGRES.port}")
    if given is not None:
        made = aws_gateway_secrets(given.host, given.address["port"], verified=given.ca is not None)
        if given.admin_secret is not None:
            sources += [f"{given.admin_secret}/{key}" for key in ADMIN_KEYS]
            made = [_database_admin(given.admin_secret), *made]
    return [*_existing(sources), *made, *_provider_secrets(substrate)]


def _existing(sources: Sequence[str]) -> list[SecretArgs]:
    """Secrets that must be there, each once; ``sources`` are ``namespace/name/key``."""
    keys: dict[tuple[str, str], dict[str, Any]] = {}
    for source in sources:
        namespace, name, key = source.split("/")
        keys.setdefault((namespace, name), {})[key] = {"existing": True}
    return [
        {"namespace": namespace, "name": name, "data": data}
        for (namespace, name), data in keys.items()
    ]


def _database_admin(source: str) -> SecretArgs:
    """The administrator's login where the Job that makes the role can mount it."""
    return {
        "namespace": NAMESPACE_FOUNDATION,
        "name": SECRET_DATABASE_ADMIN,
        "data": {key: {"copy": f"{source}/{key}"} for key in ADMIN_KEYS},
    }


def _provider_secrets(substrate: Substrate) -> list[SecretArgs]:
    """Keys of the providers, for the translator; the simulated ones demand theirs."""
    made: list[SecretArgs] = []
    kept: dict[str, Any] = {}
    if substrate.simulates_providers:
        demanded: dict[str, Any] = {
            "simulator-api-key": {"random_token": {"prefix": "sim-", "bytes": 32}},
            "aws-access-key-id": {"random_token": {"prefix": "AKIASIM", "bytes": 16}},
            "aws-secret-access-key": {"random_hex": 20},
        }
        made.append({"namespace": NAMESPACE_PROVIDERS, "name": SECRET_SIMULATOR, "data": demanded})
        simulator = f"{NAMESPACE_PROVIDERS}/{SECRET_SIMULATOR}"
        kept = {key: {"copy": f"{simulator}/{key}"} for key in demanded}
    for credential in substrate.identity.credentials:
        if credential.recipe is not None:
            kept[credential.key] = credential.recipe
    if kept:
        made.append({"namespace": NAMESPACE_GATEWAY, "name": SECRET_PROVIDERS, "data": kept})
    return made
