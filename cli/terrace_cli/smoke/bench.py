"""What the checks of `terrace smoke` share: a team of their own, its keys, the models."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from terrace_cli.endpoints import Endpoints
from terrace_cli.errors import CliError
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.smoke.books import Entry, SimulatorBill
from terrace_cli.smoke.metrics import Series

CHAT_MODEL = "sim-small"
DENIED_MODEL = "sim-large"
EMBEDDINGS_MODEL = "sim-embed"
BEDROCK_MODEL = "bedrock-claude"
BEDROCK_MODEL_ID = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PROMPT = "Terrace asks: does this call arrive, and what does it cost?"
MAX_TOKENS = 24


class CheckFailedError(Exception):
    """A check saw something else than it expected; the message says what was seen."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report: what is expected; a function that returns what was seen."""

    name: str
    expected: str
    run: Callable[["Bench"], str]


@dataclass(kw_only=True)
class Bench:
    """The platform under test and what the checks have made so far."""

    endpoints: Endpoints
    admin: GatewayAdmin
    bill: SimulatorBill
    team: str = field(default_factory=lambda: f"smoke-{secrets.token_hex(4)}")
    key_ids: list[str] = field(default_factory=list)
    first_bill_seq: int = 0
    metrics_before: dict[str, Series] = field(default_factory=dict)
    _key: str | None = None

    @property
    def gateway(self) -> str:
        """Base URL of the gateway."""
        return self.endpoints.gateway

    @property
    def key(self) -> str:
        """The team's ordinary key: chat, Bedrock and embeddings model allowed, one dollar."""
        if self._key is None:
            made = self.new_key(
                "smoke ordinary",
                models=[CHAT_MODEL, BEDROCK_MODEL, EMBEDDINGS_MODEL],
                budget_micro_usd=1_000_000,
            )
            self._key = str(made["key"])
        return self._key

    def new_key(self, name: str, **limits: Any) -> dict[str, Any]:
        """A key of the smoke team, remembered so that it is revoked at the end."""
        made = self.admin.create_key(team=self.team, name=name, **limits)
        self.key_ids.append(made["key_id"])
        return made

    def key_state(self, key_id: str) -> dict[str, Any]:
        """What the admin API says about one of the keys."""
        for key in self.admin.keys(self.team)["keys"]:
            if key["key_id"] == key_id:
                return dict(key)
        raise CheckFailedError(f"the admin API does not list {key_id}")

    def ledger(self) -> list[Entry]:
        """The smoke team's ledger entries."""
        return [entry for key_id in self.key_ids for entry in self.admin.ledger(key_id)]

    def bill_of(self, ledger: Iterable[Entry]) -> list[Entry]:
        """The provider's entries of the ledger's attempts, plus those that no ledger knows."""
        attempts = {entry["attempt_id"] for entry in ledger}
        fresh = list(self.bill.entries(after=self.first_bill_seq))
        strangers = {str(entry["attempt_id"]) for entry in fresh} - attempts
        if strangers:
            # Somebody else may use the gateway meanwhile; what their keys' ledger knows is theirs.
            strangers -= {entry["attempt_id"] for entry in self.admin.ledger()}
        return [entry for entry in fresh if str(entry["attempt_id"]) in attempts | strangers]

    def clean_up(self) -> None:
        """Revoke every key of this run; its ledger entries stay, as all of the ledger does."""
        for key_id in self.key_ids:
            try:
                self.admin.revoke_key(key_id, "smoke is over")
            except CliError:
                return  # the report already says that the gateway is not well
