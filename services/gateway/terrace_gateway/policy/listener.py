"""Hears at once that the policy changed, on a connection of its own. Losing it costs nothing but
speed: the feed asks all the same."""

import asyncio
from collections.abc import Callable

import psycopg
from psycopg import AsyncConnection
from pydantic import SecretStr

CHANNEL = "terrace_policy"
RETRY_SECONDS = 1.0
LIVENESS_SECONDS = 30.0  # a connection that a network forgot looks open for hours


class PolicyListener:
    """Calls ``wake`` for every notification, and after every reconnection."""

    def __init__(self, url: SecretStr, wake: Callable[[], None]) -> None:
        self._url = url
        self._wake = wake

    async def run(self) -> None:
        """Listen until cancelled; connect again after every failure."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError):
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        connection = await AsyncConnection.connect(
            self._url.get_secret_value(), autocommit=True, connect_timeout=2,
            application_name="terrace-policy",
        )  # fmt: skip
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}".encode())
            while True:
                self._wake()
                async for _ in connection.notifies(timeout=LIVENESS_SECONDS, stop_after=1):
                    self._wake()
                await connection.execute(b"SELECT 1")
