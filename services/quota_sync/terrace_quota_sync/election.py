"""Who of several replicas works: a lease in the gateways' database, kept through the admin API.

The holder counts from the moment it asked, on a clock that runs during suspend, less a margin; the
database ends the lease later, on its own. Every new holder has a higher fence, and a publication
with an old one is refused, so a leader that was paused changes nothing when it wakes up.
"""

import asyncio
from collections.abc import Callable

import structlog

from terrace_quota_sync.gateway_admin import GatewayAdmin, GatewayError

log = structlog.get_logger()

RENEW_SHARE = 3  # of the lease between two renewals
MARGIN_SHARE = 0.1  # of the lease that the holder does not count on


class Election:
    """One replica's part in it. ``holder`` must be unique to this start of the process."""

    def __init__(
        self, admin: GatewayAdmin, *, holder: str, lease_seconds: float, now: Callable[[], float]
    ) -> None:
        self._admin = admin
        self.holder = holder
        self._lease_seconds = lease_seconds
        self._now = now
        self._fence: int | None = None
        self._until = float("-inf")
        self.answered_at: float | None = None
        """When the gateway last answered."""
        self._won = asyncio.Event()

    @property
    def fence(self) -> int | None:
        """The fence while this replica leads; ``None``: it does not, or may not any more."""
        return self._fence if self._now() < self._until else None

    async def won(self) -> None:
        """Wait until this replica leads."""
        while self.fence is None:
            self._won.clear()
            await self._won.wait()

    def lost(self) -> None:
        """The gateway says that another one leads."""
        self._until = float("-inf")

    async def run(self) -> None:
        """Take part until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(self._lease_seconds / RENEW_SHARE)

    async def ask(self) -> bool:
        """Ask once; whether this replica leads now."""
        asked_at = self._now()
        led = self.fence
        try:
            lease = await self._admin.take_lease(
                self.holder,
                self._lease_seconds,
                timeout_seconds=self._lease_seconds / RENEW_SHARE,
            )
        except GatewayError as error:
            log.warning("lease_not_asked", error=error.code)
            return self.fence is not None
        self.answered_at = self._now()
        if not lease.held:
            self.lost()
            if led is not None:
                log.warning("leadership_lost", leader=lease.holder)
            return False
        self._fence = lease.fence
        self._until = asked_at + self._lease_seconds * (1 - MARGIN_SHARE)
        if led != lease.fence:
            log.info("leading", fence=lease.fence)
        self._won.set()
        return True

    async def leave(self) -> None:
        """Give the lease back, so that another one need not wait for its end."""
        fence = self.fence
        if fence is None:
            return
        self.lost()
        try:
            await self._admin.give_lease(self.holder, fence)
        except GatewayError as error:
            log.warning("lease_not_given_back", error=error.code)
