"""Two books that must agree: the gateway's ledger and the provider's bill, by attempt_id."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from terrace_cli.connecting import patient_transport
from terrace_cli.errors import NotRunningError

Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Attempts of the ledger against the same attempts on the bill, micro-USD."""

    attempts: int
    ledger_micro_usd: int
    bill_micro_usd: int
    differences: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Every attempt costs the same in both books."""
        return not self.differences


class SimulatorBill:
    """Reads the model simulator's own book."""

    def __init__(self, simulator: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._url = f"{simulator}/bill"
        self._transport = transport

    def last_seq(self) -> int:
        """The number of the newest entry; 0 for an empty book."""
        return max((entry["seq"] for entry in self.entries()), default=0)

    def entries(self, *, after: int = 0) -> Iterator[Entry]:
        """Entries after a number, oldest first, page by page."""
        while page := self._page({"after": after}):
            yield from page
            newest = max(entry["seq"] for entry in page)
            if newest <= after:
                return
            after = newest

    def of_attempt(self, attempt_id: str) -> list[Entry]:
        """The entries of one attempt: none, or one, if nobody billed twice."""
        return self._page({"attempt_id": attempt_id})

    def _page(self, params: dict[str, Any]) -> list[Entry]:
        try:
            transport = self._transport or patient_transport()
            with httpx.Client(timeout=30, trust_env=False, transport=transport) as client:
                answer = client.get(self._url, params=params)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise NotRunningError(
                f"The simulator's bill at {self._url} cannot be read: {error}"
            ) from error
        return list(answer.json()["entries"])


def compare(ledger: Iterable[Entry], bill: Iterable[Entry]) -> Comparison:
    """Join the books. The money an attempt cost is the sum over its ledger entries."""
    owed: dict[str, int] = defaultdict(int)
    attempt_entries: dict[str, int] = defaultdict(int)
    for entry in ledger:
        owed[entry["attempt_id"]] += entry["amount_micro_usd"]
        attempt_entries[entry["attempt_id"]] += entry["kind"] != "correction"
    billed: dict[str, list[Entry]] = defaultdict(list)
    for entry in bill:
        billed[str(entry["attempt_id"])].append(entry)

    differences: list[str] = []
    for attempt in sorted(owed.keys() | billed.keys()):
        charged = sum(entry["cost_micro_usd"] for entry in billed[attempt])
        if attempt not in owed:
            differences.append(f"{attempt}: billed {charged}, not in the ledger")
        elif attempt_entries[attempt] > 1:
            differences.append(f"{attempt}: {attempt_entries[attempt]} entries for one attempt")
        elif len(billed[attempt]) > 1:
            differences.append(f"{attempt}: billed {len(billed[attempt])} times")
        elif any(entry["status"] != "final" for entry in billed[attempt]):
            differences.append(f"{attempt}: still in flight at the provider")
        elif owed[attempt] != charged:
            differences.append(f"{attempt}: ledger {owed[attempt]}, bill {charged}")
    return Comparison(
        attempts=len(owed),
        ledger_micro_usd=sum(owed.values()),
        bill_micro_usd=sum(entry["cost_micro_usd"] for lines in billed.values() for entry in lines),
        differences=differences,
    )
