"""Prometheus metrics of the simulator. Label values are bounded: unknown models share one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

UNKNOWN_MODEL = "unknown"


class SimulatorMetrics:
    """A registry of its own, so that several simulators can live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "terrace_simulator_requests_total",
            "Calls by how they ended; 'refused' and 'fault' are unbilled.",
            ["surface", "model", "outcome"],
            registry=self._registry,
        )
        self._billed = Counter(
            "terrace_simulator_billed_micro_usd_total",
            "Money billed since the process started, micro-USD.",
            ["model"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "terrace_simulator_tokens_total",
            "Tokens billed since the process started.",
            ["model", "direction"],
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "terrace_simulator_in_flight",
            "Calls the model is working on.",
            registry=self._registry,
        )

    def refused(self, surface: str, model: str, outcome: str) -> None:
        """Count a call that was not billed."""
        self._requests.labels(surface, model, outcome).inc()

    def opened(self) -> None:
        """Count a call in."""
        self._in_flight.inc()

    def closed(
        self,
        *,
        surface: str,
        model: str,
        outcome: str,
        input_tokens: int,
        output_tokens: int,
        cost_micro_usd: int,
    ) -> None:
        """Count a billed call out."""
        self._in_flight.dec()
        self._requests.labels(surface, model, outcome).inc()
        self._billed.labels(model).inc(cost_micro_usd)
        self._tokens.labels(model, "input").inc(input_tokens)
        self._tokens.labels(model, "output").inc(output_tokens)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)
