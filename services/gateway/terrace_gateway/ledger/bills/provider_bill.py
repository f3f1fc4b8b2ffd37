"""Reading a provider's own log of one attempt: what it says was billed."""

from dataclasses import dataclass
from typing import Literal

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from terrace_gateway.calls.ports import Outcome

READ_SECONDS = 10
MAX_PAGES = 20

_OUTCOMES: dict[str, Outcome] = {
    "ok": "ok",
    "client_gone": "client_cancelled",
    "failed_after_start": "upstream_error",
}


class BillUnreachableError(Exception):
    """The log could not be read, or what came is not a bill."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore")

    seq: int
    attempt_id: str | None
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cost_micro_usd: int = Field(ge=0)
    status: Literal["in_flight", "final"]
    outcome: str | None = None


class _Page(BaseModel):
    model_config = ConfigDict(extra="ignore")

    entries: list[_Entry]


@dataclass(frozen=True)
class Billed:
    """What the provider charged for one attempt, over all calls it saw of it."""

    calls: int
    in_flight: bool
    input_tokens: int
    output_tokens: int
    cost_micro_usd: int
    outcome: Outcome
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    priced: bool = True
    """False: the log has no money, and the price of these tokens cannot be found."""


async def read_bill(session: aiohttp.ClientSession, bill_url: str, attempt_id: str) -> Billed:
    """Read every entry of the attempt. Raises ``BillUnreachableError``."""
    entries: list[_Entry] = []
    after = 0
    for _ in range(MAX_PAGES):
        page = await _page(session, bill_url, attempt_id, after)
        if not page:
            break
        entries += [entry for entry in page if entry.attempt_id == attempt_id]
        after = max(entry.seq for entry in page)
    else:
        raise BillUnreachableError("the bill does not end")
    outcome = _OUTCOMES.get(entries[-1].outcome or "", "unknown") if entries else "upstream_error"
    return Billed(
        calls=len(entries),
        in_flight=any(entry.status == "in_flight" for entry in entries),
        input_tokens=sum(entry.input_tokens for entry in entries),
        output_tokens=sum(entry.output_tokens for entry in entries),
        cost_micro_usd=sum(entry.cost_micro_usd for entry in entries),
        outcome=outcome,
    )


async def _page(
    session: aiohttp.ClientSession, bill_url: str, attempt_id: str, after: int
) -> list[_Entry]:
    timeout = aiohttp.ClientTimeout(total=READ_SECONDS)
    query = {"attempt_id": attempt_id, "after": str(after)}
    try:
        async with session.get(bill_url, params=query, timeout=timeout) as response:
            if response.status != 200:
                raise BillUnreachableError(f"status {response.status}")
            return _Page.model_validate_json(await response.read()).entries
    except (aiohttp.ClientError, OSError, TimeoutError, ValidationError) as error:
        raise BillUnreachableError(type(error).__name__) from error
