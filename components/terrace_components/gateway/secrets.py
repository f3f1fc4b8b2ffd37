"""The Secrets that a gateway and its database need. Recipes only: no value is ever here."""

from typing import Any

from terrace_common.names import (
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    SECRET_GATEWAY,
    SECRET_GATEWAY_LEDGER,
    SECRET_POSTGRES,
)
from terrace_components.foundation.secret_bootstrap import SecretArgs
from terrace_components.gateway.configuration import DATABASE_CA_KEY
from terrace_components.gateway.pod import DATABASE_CA

ADMIN_KEY_PREFIX = "tadm-"
RANDOM_BYTES = 32
_GUARDS_OWN: dict[str, Any] = {
    "key-pepper": {"random_hex": RANDOM_BYTES},
    "admin-key": {"random_token": {"prefix": ADMIN_KEY_PREFIX, "bytes": RANDOM_BYTES}},
}
# A Secret of its own, because one that exists is never given another key: a platform of the release
# before has ``gateway-secrets`` without these.
_LEDGER_KEYS: SecretArgs = {
    "namespace": NAMESPACE_GATEWAY,
    "name": SECRET_GATEWAY_LEDGER,
    "data": {
        "ledger-signing-key": {"random_hex": RANDOM_BYTES},
        "capture-key": {"random_hex": RANDOM_BYTES},
    },
}


def gateway_secrets(postgres_host: str) -> list[SecretArgs]:
    """For ``FoundationLocal``: the database's passwords, and the guard's database URL, key pepper,
    admin key, and the keys of its ledger and captures. ``postgres_host`` is the server's
    ``host:port`` as pods name it."""
    password = f"{{{NAMESPACE_FOUNDATION}/{SECRET_POSTGRES}/gateway-password}}"
    return [
        {
            "namespace": NAMESPACE_FOUNDATION,
            "name": SECRET_POSTGRES,
            "data": {
                "superuser-password": {"random_hex": RANDOM_BYTES},
                "gateway-password": {"random_hex": RANDOM_BYTES},
            },
        },
        {
            "namespace": NAMESPACE_GATEWAY,
            "name": SECRET_GATEWAY,
            "data": {
                "database-url": {
                    "template": f"postgresql://gateway:{password}@{postgres_host}/terrace"
                },
                **_GUARDS_OWN,
            },
        },
        _LEDGER_KEYS,
    ]


def aws_gateway_secrets(
    postgres_host: str, postgres_port: int, *, verified: bool
) -> list[SecretArgs]:
    """For ``SecretBootstrap`` where the database is managed (``DatabaseRole`` makes the role that
    these are of). ``verified``: the guard has the database's certificates (``database_ca`` of
    ``GovernanceGateway``) and checks the server's; else the connection is encrypted only."""
    password = f"{{{NAMESPACE_FOUNDATION}/{SECRET_POSTGRES}/gateway-password}}"
    tls = (
        f"sslmode=verify-full&sslrootcert={DATABASE_CA}/{DATABASE_CA_KEY}"
        if verified
        else "sslmode=require"
    )
    url = f"postgresql://gateway:{password}@{postgres_host}:{postgres_port}/terrace?{tls}"
    return [
        {
            "namespace": NAMESPACE_FOUNDATION,
            "name": SECRET_POSTGRES,
            "data": {"gateway-password": {"random_hex": RANDOM_BYTES}},
        },
        {
            "namespace": NAMESPACE_GATEWAY,
            "name": SECRET_GATEWAY,
            "data": {"database-url": {"template": url}, **_GUARDS_OWN},
        },
        _LEDGER_KEYS,
    ]
