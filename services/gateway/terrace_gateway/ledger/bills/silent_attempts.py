"""Attempts of which a log said nothing, so that it is not read again while it has nothing new.

In memory, of each process: the first pass after a start reads everything. Nothing is decided here;
what is kept is what reading the same again would say.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Silence:
    """No line named the attempt."""

    mark: bytes
    """Of what was read, and of what was looked for."""
    was_on: bool
    """Whether the log was on from before its call until after it."""


class SilentAttempts:
    """Of one provider. Only attempts of its last pass are kept: there are at most so many."""

    def __init__(self) -> None:
        self._known: Mapping[str, Silence] = {}

    def still(self, marks: Mapping[str, bytes]) -> dict[str, Silence]:
        """Those, by attempt id, of which there is nothing new to read. ``marks``: as of now."""
        return {
            attempt_id: known
            for attempt_id, mark in marks.items()
            if (known := self._known.get(attempt_id)) is not None and known.mark == mark
        }

    def keep(self, silences: Mapping[str, Silence]) -> None:
        """Instead of what was kept."""
        self._known = silences
