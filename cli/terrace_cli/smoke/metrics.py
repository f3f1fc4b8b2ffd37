"""Whether Prometheus saw what happened; asked through its HTTP API, as a dashboard would."""

import time

import httpx

from terrace_cli.connecting import patient_transport
from terrace_cli.errors import NotRunningError

# Two scrapes at the usual 15 s, and some air.
SCRAPE_WAIT_SECONDS = 45.0

GATEWAY_REQUESTS = "terrace_requests_total"
GATEWAY_COST = "terrace_cost_micro_usd_total"
SIMULATOR_REQUESTS = "terrace_simulator_requests_total"
SIMULATOR_BILLED = "terrace_simulator_billed_micro_usd_total"

Series = dict[tuple[tuple[str, str], ...], float]


class Prometheus:
    """A reader of counters. Raises NotRunningError when it cannot be asked."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url
        self._transport = transport

    def series(self, counter: str) -> Series:
        """The counter's value per set of labels; empty when it has none yet."""
        try:
            transport = self._transport or patient_transport()
            with httpx.Client(timeout=10, trust_env=False, transport=transport) as client:
                answer = client.get(f"{self._url}/api/v1/query", params={"query": counter})
            answer.raise_for_status()
            return {
                tuple(sorted(one["metric"].items())): float(one["value"][1])
                for one in answer.json()["data"]["result"]
            }
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise NotRunningError(
                f"Prometheus at {self._url} cannot be asked for {counter}: {error}"
            ) from error

    def growth(self, counter: str, since: Series, at_least: float, *, until: float) -> float:
        """By how much a counter grew, as soon as that is enough, or at `until` (monotonic time)."""
        while (grown := grown_by(since, self.series(counter))) < at_least:
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        return grown


def grown_by(before: Series, after: Series) -> float:
    """Sum over the series. A pod that went takes nothing away; a new one counts from 0."""
    return sum(
        value - before[labels] if value >= before.get(labels, value + 1) else value
        for labels, value in after.items()
    )
