"""Background work goes in turns: one that the database failed is told, counted and tried again.

No answer of Postgres ends the process, of whatever class its error is. A database that must not be
used (``DatabaseConfigError``) and defects of ours still do.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import structlog
from prometheus_client.core import CounterMetricFamily

from terrace_gateway.calls.ports import AuthorityUnavailableError

log = structlog.get_logger()

DATABASE_FAILURES = (AuthorityUnavailableError, psycopg.Error)
"""The database is away, or it answered with an error."""


class Turns:
    """The turns of one work. ``work`` is its name in the log and in the metric."""

    def __init__(self, work: str) -> None:
        self.work = work
        self.failed = 0
        """Since the start."""
        self._told: str | None = None

    @contextmanager
    def turn(self) -> Generator[None]:
        """One turn; returns also when the database failed it."""
        try:
            yield
        except DATABASE_FAILURES as error:
            self.miss(error)
        else:
            self.done()

    def done(self) -> None:
        """A turn succeeded."""
        self._told = None

    def miss(self, error: AuthorityUnavailableError | psycopg.Error) -> None:
        """Count a turn that failed. In the log an error stands once until a turn succeeds; that
        the database is away is told by who finds it so."""
        self.failed += 1
        if not isinstance(error, psycopg.Error):
            log.debug("turn_failed", work=self.work, error=str(error))
            return
        what = f"{type(error).__name__} {error.sqlstate or ''}".rstrip()
        if what != self._told:
            self._told = what
            log.error("turn_failed", work=self.work, error=what)


class TurnsCollector:
    """Give it to ``registry.register``."""

    def __init__(self, works: Sequence[Turns]) -> None:
        self._works = works

    def collect(self) -> Iterator[Any]:
        """As prometheus_client asks."""
        failed = CounterMetricFamily(
            "terrace_background_turns_failed",
            "Turns of background work that the database failed; they are tried again.",
            labels=["work"],
        )
        for turns in self._works:
            failed.add_metric([turns.work], turns.failed)
        yield failed
