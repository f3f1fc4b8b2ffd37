"""The policy room on a real Postgres, with a clock that a test moves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from pydantic import SecretStr

from gateway_rig.postgres import Postgres
from terrace_common.governance import load_governance
from terrace_gateway.admin.key_store import KeyStore, NewKeyRow
from terrace_gateway.authentication.keys import hash_key, mint_key, mint_key_id
from terrace_gateway.authentication.virtual_key import VirtualKeyAuthenticator
from terrace_gateway.calls.ports import Presented, Principal
from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.key_use import KeyUse
from terrace_gateway.policy.store import PolicyStore
from terrace_gateway.policy.versions import GovernanceVersions

PEPPER = bytes.fromhex("ca" * 32)


class HandClock(Clock):
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        super().__init__()

    def monotonic(self) -> float:
        return self.seconds

    def forward(self, seconds: float) -> None:
        self.seconds += seconds


class TickingClock(HandClock):
    """Moves a little with every look, as a real one does, and as far as it is told."""

    def monotonic(self) -> float:
        self.seconds += 1e-6
        return self.seconds


def example_text() -> str:
    return (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")


def presented(token: str | None) -> Presented:
    return Presented(token, "10.0.0.1", {})


@dataclass
class Replica:
    """What one guard has of the policy."""

    database: Database
    clock: TickingClock
    versions: GovernanceVersions
    feed: PolicyFeed
    keys: KeyStore
    use: KeyUse
    authenticator: VirtualKeyAuthenticator = field(init=False)

    def __post_init__(self) -> None:
        self.authenticator = VirtualKeyAuthenticator(
            self.feed, self.clock, pepper=PEPPER, use=self.use
        )

    async def apply(self, text: str, **options: Any) -> int:
        options = {"actor": "alice", "reason": "test", "check_base": False, **options}
        return (await self.versions.apply(text, **options)).version

    async def mint(self, **fields: Any) -> tuple[str, str]:
        """Key and id."""
        key, key_id = mint_key(), fields.pop("key_id", mint_key_id())
        values: dict[str, Any] = dict.fromkeys(
            ("name", "declared", "app", "user", "models", "policies", "surfaces", "features",
             "budget_micro_usd", "max_requests", "requests_per_minute", "expires_at")
        )  # fmt: skip
        values |= {"key_id": key_id, "key_hash": hash_key(PEPPER, key), "team": "team-a"}
        row = NewKeyRow(**{**values, **fields})
        version = (await self.versions.version()) or {"version": 0}
        await self.keys.create(row, actor="alice", reason=None, version=version["version"])
        return key, key_id

    async def call(self, key: str) -> Principal | None:
        return await self.authenticator.authenticate(presented(key))


@asynccontextmanager
async def replica_of(
    postgres: Postgres, database: str, *, text: str | None = None, **options: Any
) -> AsyncIterator[Replica]:
    """A replica whose translator was started with ``text``."""
    connection = Database(SecretStr(postgres.url(database)), size=8, wait_seconds=2)
    await connection.open()
    try:
        if postgres.running:
            await connection.prepare()
            await connection.probe()
        clock = TickingClock()
        deployed = Deployed(load_governance(text or example_text(), "file"))
        versions = GovernanceVersions(connection, deployed)
        feed = PolicyFeed(PolicyStore(connection), clock, deployed, **options)
        yield Replica(
            connection, clock, versions, feed, KeyStore(connection), KeyUse(connection, clock)
        )
    finally:
        await connection.close()
