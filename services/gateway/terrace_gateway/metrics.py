"""The guard's metrics, ``terrace_*``. One registry per process object, none global."""

from dataclasses import dataclass
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics import exposition as openmetrics

from terrace_gateway.calls.ports import Cap, Charge, Hold
from terrace_gateway.genai_metrics import GenAiMetrics
from terrace_gateway.money.budget_metrics import BudgetMetrics
from terrace_gateway.money.slice_events import LogEvents

CONTENT_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_CALL = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class SpoolMetrics:
    """What the spool tells: a ``SpoolObserver``, called in the event loop or the spool's thread."""

    def __init__(self, r: CollectorRegistry) -> None:
        self._records = Histogram(
            "terrace_spool_group_records", "Records of one group commit.", registry=r,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
        )  # fmt: skip
        self._seconds = Histogram(
            "terrace_spool_group_seconds", "Write and sync of one group.", registry=r, buckets=_FAST
        )
        self._bytes = Counter("terrace_spool_written_bytes", "Bytes spooled.", registry=r)
        self._refused = Counter(
            "terrace_spool_refused", "Calls refused because the spool has no room.", registry=r
        )
        self._dropped = Counter(
            "terrace_decisions_dropped",
            "Decisions that could not be recorded, or of which that is not known.",
            registry=r,
        )

    def group(self, records: int, size: int, seconds: float) -> None:
        """One group commit."""
        self._records.observe(records)
        self._bytes.inc(size)
        self._seconds.observe(seconds)

    def refused(self) -> None:
        """An open found no room."""
        self._refused.inc()

    def dropped(self, decisions: int) -> None:
        """Decisions that are lost."""
        self._dropped.inc(decisions)


class SliceMetrics(LogEvents):
    """What the slices tell: ``SliceEvents``, also in the log."""

    def __init__(self, r: CollectorRegistry) -> None:
        self._overruns = Counter(
            "terrace_slice_overruns", "Charges above what was held.", ("dimension",), registry=r
        )
        self._would_refuse = Counter(
            "terrace_cap_would_refuse", "Calls that a cap in audit mode would refuse.",
            ("scope", "dimension"), registry=r,
        )  # fmt: skip
        self._idle = Counter("terrace_slices_idle_returned", "Idle slices given back.", registry=r)

    def overrun(self, hold: Hold, charge: Charge, bill: int) -> None:
        """A bill above its hold."""
        super().overrun(hold, charge, bill)
        self._overruns.labels(charge.dimension).inc()

    def would_refuse(self, attempt_id: str, cap: Cap, needed: int) -> None:
        """A cap in audit mode is passed."""
        super().would_refuse(attempt_id, cap, needed)
        self._would_refuse.labels(cap.scope, cap.dimension).inc()

    def idle_returned(self, slices: int) -> None:
        """Idle parts went back."""
        self._idle.inc(slices)


@dataclass(frozen=True, slots=True)
class _Closed:
    """Children of the counters of one surface, model and outcome."""

    requests: Counter
    input_tokens: Counter
    output_tokens: Counter
    cost: Counter


class Metrics:
    """Instruments by name. Labels never hold a key or text from a client; orgs and teams only where
    they are budgets."""

    def __init__(self, *, replica: str, version: str) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "terrace_requests",
            "Model calls by how they ended.",
            ("surface", "model", "outcome"),
            registry=r,
        )
        self.denied = Counter(
            "terrace_denied", "Requests refused before an upstream call.", ("reason",), registry=r
        )
        self.reservations = Counter(
            "terrace_reservations", "Reservations asked for.", ("result",), registry=r
        )
        self.reserve_seconds = Histogram(
            "terrace_reserve_seconds", "Time of a reservation.", registry=r, buckets=_FAST
        )
        self.tokens = Counter(
            "terrace_tokens", "Tokens settled.", ("model", "direction"), registry=r
        )
        self.cost = Counter(
            "terrace_cost_micro_usd", "Money settled, in micro-USD.", ("model",), registry=r
        )
        self.fallbacks = Counter(
            "terrace_fallbacks",
            "Calls that went on to another model, by the one that failed.",
            ("model",),
            registry=r,
        )
        self.gen_ai = GenAiMetrics(r)
        self.spool = SpoolMetrics(r)
        self.slices = SliceMetrics(r)
        self.budgets = BudgetMetrics(r)
        self._closed: dict[tuple[str, str, str], _Closed] = {}
        self.granted = self.reservations.labels("granted")
        self._captures = Counter(
            "terrace_captures", "Calls that a policy asks to capture.", ("result",), registry=r
        )
        self.overruns = Counter(
            "terrace_overruns", "Bills above their reservation.", ("model",), registry=r
        )
        self.open_attempts = Gauge(
            "terrace_open_attempts", "Attempts of this process that are open.", registry=r
        )
        self.upstream_seconds = Histogram(
            "terrace_upstream_seconds",
            "Time of an upstream call.",
            ("surface", "model"),
            registry=r,
            buckets=_CALL,
        )
        self.reaped = Counter(
            "terrace_reaped_attempts", "Attempts given up as unknown.", registry=r
        )
        self.corrections = Counter(
            "terrace_corrections", "Attempts corrected from a provider's log.", registry=r
        )
        self.database_up = Gauge("terrace_database_up", "Postgres answers.", registry=r)
        self.translator_up = Gauge("terrace_translator_up", "The translator answers.", registry=r)
        build = Gauge("terrace_build_info", "Always 1.", ("version", "replica"), registry=r)
        build.labels(version, replica).set(1)

    def attempt_closed(
        self,
        surface: str,
        model: str,
        outcome: str,
        *,
        input_tokens: int,
        output_tokens: int,
        amount_micro_usd: int,
    ) -> None:
        """One attempt by how it ended, with what it is charged."""
        place = (surface, model, outcome)
        closed = self._closed.get(place)
        if closed is None:  # looking children up by their labels costs more than counting
            closed = self._closed[place] = _Closed(
                self.requests.labels(surface, model, outcome),
                self.tokens.labels(model, "input"),
                self.tokens.labels(model, "output"),
                self.cost.labels(model),
            )
        closed.requests.inc()
        closed.input_tokens.inc(input_tokens)
        closed.output_tokens.inc(output_tokens)
        closed.cost.inc(amount_micro_usd)

    def captured(self, result: str) -> None:
        """What became of a call that was to be captured."""
        self._captures.labels(result).inc()

    def exposition(self) -> bytes:
        """All metrics in OpenMetrics text."""
        return cast("bytes", openmetrics.generate_latest(self.registry))  # pyright: ignore[reportUnknownMemberType]
