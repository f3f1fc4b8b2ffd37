"""A bulkhead per provider: so many calls at once, a short queue, and a deadline in it.

A provider that hangs fills its own places and its own queue. It takes nothing that another
provider's calls need.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from terrace_gateway.upstream.port import BulkheadFullError


@dataclass(frozen=True)
class BulkheadLimits:
    """``places``: calls at once. ``queue``: calls that may wait, each for ``wait_seconds``."""

    places: int = 256
    queue: int = 64
    wait_seconds: float = 2.0


class Bulkhead:
    """The places of one provider, first come first served."""

    def __init__(self, provider: str, limits: BulkheadLimits) -> None:
        self._provider = provider
        self._limits = limits
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.refused = 0
        """Calls that found no place, so far."""

    @property
    def running(self) -> int:
        """Calls that run."""
        return self._running

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return len(self._waiting)

    @property
    def places(self) -> int:
        """Calls at once."""
        return self._limits.places

    @property
    def has_room(self) -> bool:
        """Whether a call would be let in now, without waiting."""
        return self._running < self._limits.places and not self._waiting

    def resize(self, limits: BulkheadLimits) -> None:
        """New limits. Calls that run go on; more places let in who waits."""
        self._limits = limits
        self._let_in()

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Hold a place for as long as the block runs. Raises ``BulkheadFullError``."""
        await self.enter()
        try:
            yield
        finally:
            self.leave()

    def leave(self) -> None:
        """Give back a place."""
        self._running -= 1
        self._let_in()

    async def enter(self) -> None:
        """Take a place, to be given back by ``leave``. Raises ``BulkheadFullError``."""
        if self.has_room:
            self._running += 1
            return
        if len(self._waiting) >= self._limits.queue:
            raise self._full()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # given a place in the same moment
                self._running -= 1
                self._let_in()
            else:
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
                self._let_in()
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise

    def _let_in(self) -> None:
        while self._waiting and self._running < self._limits.places:
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)

    def _full(self) -> BulkheadFullError:
        self.refused += 1
        seconds = max(1, math.ceil(self._limits.wait_seconds))
        return BulkheadFullError(self._provider, retry_after_seconds=seconds)


class Bulkheads:
    """One ``Bulkhead`` per provider, made at its first call."""

    def __init__(self, limits: BulkheadLimits) -> None:
        self._default = limits
        self._own: dict[str, BulkheadLimits] = {}
        self._made: dict[str, Bulkhead] = {}

    def of(self, provider: str) -> Bulkhead:
        """The provider's bulkhead."""
        bulkhead = self._made.get(provider)
        if bulkhead is None:
            bulkhead = Bulkhead(provider, self._own.get(provider, self._default))
            self._made[provider] = bulkhead
        return bulkhead

    def set_places(self, places: dict[str, int]) -> None:
        """Providers with a number of places of their own; all others have the default."""
        self._own = {
            name: BulkheadLimits(count, self._default.queue, self._default.wait_seconds)
            for name, count in places.items()
        }
        for name, bulkhead in self._made.items():
            bulkhead.resize(self._own.get(name, self._default))

    def items(self) -> list[tuple[str, Bulkhead]]:
        """All that were used, for metrics."""
        return list(self._made.items())
