"""A circuit breaker on an injected clock: closed, open for a while, then one call at a time."""

from collections import deque
from collections.abc import Callable

from terrace_common.governance.catalogue import Breaker

BUCKETS = 10  # of the window, so that it slides instead of jumping
MOST_DOUBLINGS = 3
PROBE_SECONDS = 60
"""A probe without an outcome for so long no longer keeps others from probing."""


class CircuitBreaker:
    """Health of one deployment or provider. Not for several threads."""

    def __init__(self, settings: Breaker, now: Callable[[], float], *, least_sources: int = 1):
        """``least_sources``: failures of fewer sources (models of a provider) never open it."""
        self.settings = settings
        self._now = now
        self._least_sources = least_sources
        self._unknowns = 0
        self._open_until: float | None = None
        self._openings = 0
        self._probe_until = 0.0
        self._buckets: deque[_Bucket] = deque(maxlen=BUCKETS)

    @property
    def is_closed(self) -> bool:
        """Whether it lets everything through."""
        return self._open_until is None

    def wait_seconds(self) -> float:
        """0: a call may try. Else how long until one may."""
        if self._open_until is None:
            return 0.0
        now = self._now()
        return max(0.0, self._open_until - now, self._probe_until - now)

    def begin(self) -> bool:
        """Called before a call. ``False``: it must not be made."""
        if self._open_until is None:
            return True
        if self.wait_seconds() > 0:
            return False
        self._probe_until = self._now() + PROBE_SECONDS
        return True

    def succeeded(self) -> None:
        """A call was answered."""
        self._unknowns = 0
        if self._open_until is not None and self._now() >= self._open_until:
            self._open_until = None
            self._openings = 0
            self._probe_until = 0.0
            self._buckets.clear()
        self._count(None)

    def failed(self, source: str, *, unknown: bool) -> None:
        """A call failed at the provider, or its outcome is unknown."""
        self._unknowns = self._unknowns + 1 if unknown else 0
        self._count(source)
        if self._open_until is not None:
            # Late failures of calls from before it opened say nothing new.
            if self._now() >= self._open_until:
                self._open()
            return
        calls = sum(bucket.calls for bucket in self._buckets)
        failures = sum(bucket.failures for bucket in self._buckets)
        sources = frozenset[str]().union(*(bucket.sources for bucket in self._buckets))
        too_many = (
            calls >= self.settings.least_calls
            and failures * 100 >= self.settings.error_percent * calls
        )
        if len(sources) >= self._least_sources and (
            too_many or (self._least_sources == 1 and self._unknowns >= self.settings.unknowns)
        ):
            self._open()

    def abandoned(self) -> None:
        """A call that says nothing about health: its probe goes to the next."""
        self._probe_until = 0.0

    def _open(self) -> None:
        seconds = self.settings.open_seconds * 2 ** min(self._openings, MOST_DOUBLINGS)
        self._open_until = self._now() + seconds
        self._openings += 1
        self._probe_until = 0.0
        self._unknowns = 0

    def _count(self, failed_source: str | None) -> None:
        now = self._now()
        width = self.settings.window_seconds / BUCKETS
        while self._buckets and now - self._buckets[0].began >= self.settings.window_seconds:
            self._buckets.popleft()
        if not self._buckets or now - self._buckets[-1].began >= width:
            self._buckets.append(_Bucket(now))
        bucket = self._buckets[-1]
        bucket.calls += 1
        if failed_source is not None:
            bucket.failures += 1
            bucket.sources.add(failed_source)


class _Bucket:
    __slots__ = ("began", "calls", "failures", "sources")

    def __init__(self, began: float) -> None:
        self.began = began
        self.calls = 0
        self.failures = 0
        self.sources: set[str] = set()
