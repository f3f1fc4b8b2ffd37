"""Switches that make the simulated provider fail on purpose.

The first switch, in the order given, that fits a call's model is used for each kind; a call can
meet several kinds at once (late *and* cut off). ``remaining`` counts down to 0, then the switch is
gone; without it the switch stays until it is replaced or deleted.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FaultKind = Literal["status", "latency", "chunk_latency", "disconnect", "hang", "no_usage"]

MAX_FAULTS = 100


class Fault(BaseModel):
    """One switch.

    - ``status``: refuse with that HTTP status, unbilled.
    - ``hang``: never answer, unbilled.
    - ``latency``: wait ``seconds`` before the first byte; the call is open in the book meanwhile.
    - ``chunk_latency``: wait ``seconds`` before every chunk.
    - ``disconnect``: close the connection after ``after_chunks`` chunks; 0 is before the model
      began and is unbilled, anything else is billed for what was produced.
    - ``no_usage``: leave usage out of the answer; billed as always.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = "*"
    kind: FaultKind
    status: int | None = Field(default=None, ge=400, le=599)
    error_type: str | None = Field(default=None, pattern=r"^[A-Za-z]{1,64}$")
    """With ``status`` on the Bedrock face: the AWS error, where a status has more than one."""
    seconds: float | None = Field(default=None, ge=0, le=3600)
    after_chunks: int | None = Field(default=None, ge=0)
    remaining: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> "Fault":
        needed = {
            "status": self.status,
            "latency": self.seconds,
            "chunk_latency": self.seconds,
            "disconnect": self.after_chunks,
        }
        if self.kind in needed and needed[self.kind] is None:
            names = {"status": "status", "disconnect": "after_chunks"}
            raise ValueError(f"kind {self.kind} needs {names.get(self.kind, 'seconds')}")
        return self


@dataclass(frozen=True, slots=True)
class FaultsOfCall:
    """What one call will meet. Durations in seconds."""

    status: int | None = None
    error_type: str | None = None
    hang: bool = False
    latency: float = 0.0
    chunk_latency: float = 0.0
    disconnect_after: int | None = None
    no_usage: bool = False


class FaultBoard:
    """The switches now set. Use from one event loop."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def replace(self, faults: list[Fault]) -> None:
        """Set exactly these switches."""
        self._faults = [fault.model_copy() for fault in faults]

    def current(self) -> list[Fault]:
        """The switches with what remains of them."""
        return list(self._faults)

    def take(self, model: str) -> FaultsOfCall:
        """What a call to ``model`` meets; uses one of ``remaining`` of each switch it meets."""
        met: dict[str, Fault] = {}
        for fault in self._faults:
            if fault.model in {"*", model}:
                met.setdefault(fault.kind, fault)
        refusing = met.get("status") or met.get("hang")
        if refusing is not None:
            met = {refusing.kind: refusing}
        for fault in met.values():
            if fault.remaining is not None:
                fault.remaining -= 1
        self._faults = [fault for fault in self._faults if fault.remaining != 0]

        status, disconnect = met.get("status"), met.get("disconnect")
        latency, chunk_latency = met.get("latency"), met.get("chunk_latency")
        return FaultsOfCall(
            status=status.status if status else None,
            error_type=status.error_type if status else None,
            hang="hang" in met,
            latency=(latency.seconds or 0.0) if latency else 0.0,
            chunk_latency=(chunk_latency.seconds or 0.0) if chunk_latency else 0.0,
            disconnect_after=disconnect.after_chunks if disconnect else None,
            no_usage="no_usage" in met,
        )
