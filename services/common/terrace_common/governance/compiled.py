"""What the spec means for one caller: types of compiled governance, and their pure checks.

The fields of ``EffectivePolicy``, ``Window``, ``Hours`` and the aliases are those of the gateway's
ports of a call. Nothing here knows a database: a cap gets its id there.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal
from zoneinfo import ZoneInfo

from terrace_common.governance.regions import region_allowed

Scope = Literal["org", "team", "user", "app", "key", "model", "provider"]
Dimension = Literal[
    "requests", "input_tokens", "output_tokens", "total_tokens", "micro_usd", "concurrency"
]
CapMode = Literal["block", "audit"]
WindowKind = Literal["lifetime", "fixed", "calendar", "rolling"]
WindowUnit = Literal["minute", "hour", "day", "week", "month"]
Feature = Literal["tools", "images", "streaming", "json_schema", "reasoning", "embeddings"]

DEFAULT_OUTAGE_GRACE_SECONDS = 60
DEFAULT_STREAM_GRACE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Window:
    """The time over which a cap counts.

    ``lifetime`` has no end. ``fixed`` windows have ``seconds`` and begin at multiples of them since
    the epoch. ``calendar`` windows are one ``unit`` of the clock of ``zone`` (IANA name).
    ``rolling`` windows are the last ``seconds``, counted in buckets.
    """

    kind: WindowKind
    seconds: int = 0
    unit: WindowUnit | None = None
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class DeclaredCap:
    """A cap as the spec declares it. ``scope_id`` is a name of the spec, of a key too: two secrets
    of one declared key share its caps."""

    scope: Scope
    scope_id: str
    dimension: Dimension
    window: Window
    amount: int
    mode: CapMode = "block"
    thresholds: tuple[int, ...] = ()
    """Percent of ``amount`` at which an alert is raised."""

    @property
    def identity(self) -> tuple[Scope, str, Dimension, Window]:
        """What makes it the same cap when its amount, mode or thresholds change."""
        return (self.scope, self.scope_id, self.dimension, self.window)

    @property
    def window_kind(self) -> WindowKind:
        """As a column of its own."""
        return self.window.kind

    @property
    def window_seconds(self) -> int:
        """0 for a lifetime and for calendar windows, which have no fixed length."""
        return self.window.seconds

    @property
    def window_unit(self) -> WindowUnit | None:
        """Of calendar windows."""
        return self.window.unit

    @property
    def window_zone(self) -> str:
        """``UTC`` where it does not matter."""
        return self.window.zone


@dataclass(frozen=True, slots=True)
class CapturePolicy:
    """Prompt and answer capture: redacted, encrypted, kept for ``retention_days``."""

    retention_days: int


@dataclass(frozen=True, slots=True)
class Hours:
    """Times of the week in ``zone``. ``days``: 0 is Monday. Minutes of the day, end exclusive.

    An end that is not after the beginning is on the next day; ``days`` are those of the beginning.
    """

    zone: str
    days: frozenset[int]
    begin_minute: int
    end_minute: int

    def contains(self, moment: datetime) -> bool:
        """Whether the clock of ``zone`` shows a time of this span. ``moment`` has an offset."""
        there = moment.astimezone(ZoneInfo(self.zone))
        minute, day = there.hour * 60 + there.minute, there.weekday()
        if self.begin_minute < self.end_minute:
            return day in self.days and self.begin_minute <= minute < self.end_minute
        if minute >= self.begin_minute:
            return day in self.days
        return minute < self.end_minute and (day - 1) % 7 in self.days

    @property
    def order(self) -> tuple[str, tuple[int, ...], int, int]:
        """For sorting."""
        return (self.zone, tuple(sorted(self.days)), self.begin_minute, self.end_minute)


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """All policies that apply to one caller, merged: every one must allow."""

    models: frozenset[str] | None = None
    """Names of the catalogue; ``None``: all."""
    providers: frozenset[str] | None = None
    residency: tuple[tuple[str, ...], ...] = ()
    """Each set of region patterns must allow every region that a candidate may process in."""
    denied_features: frozenset[str] = frozenset()
    """Of ``Feature``."""
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None
    over_output: Literal["clamp", "refuse"] = "clamp"
    hours: tuple[tuple[Hours, ...], ...] = ()
    """Each set must have a span that contains the present; empty: always."""
    networks: tuple[tuple[str, ...], ...] = ()
    """Each set of CIDRs must contain the caller's address; empty: from everywhere."""
    mode: CapMode = "block"
    on_disconnect: Literal["drain", "cut"] = "drain"
    outage: Literal["closed", "limited"] = "limited"
    outage_grace_seconds: int = DEFAULT_OUTAGE_GRACE_SECONDS
    stream_grace_seconds: int = DEFAULT_STREAM_GRACE_SECONDS
    guardrails: tuple[str, ...] = ()
    """In the order in which the spec declares them."""
    capture: CapturePolicy | None = None
    priority: int = 0
    names: tuple[str, ...] = ()
    """Of the policies that were merged, for explanations."""

    def allows_model(self, model: str, provider: str) -> bool:
        """Whether a model of the catalogue, served by ``provider``, may be called."""
        return (self.models is None or model in self.models) and (
            self.providers is None or provider in self.providers
        )

    def allows_region(self, region: str) -> bool:
        """Whether prompts may be processed in ``region``, or in all regions that it stands for
        (``eu-*``). An unknown region (the empty text) is allowed only if no policy says anything
        about residency."""
        return all(region_allowed(region, patterns) for patterns in self.residency)

    def open_at(self, moment: datetime) -> bool:
        """Whether calls are allowed at ``moment`` (with an offset)."""
        return all(any(span.contains(moment) for span in spans) for spans in self.hours)

    def admits(self, address: str) -> bool:
        """Whether calls are allowed from ``address``. What is no address is in no network.

        An IPv4 address that is written as IPv6 (``::ffff:10.0.0.1``) is the IPv4 address.
        """
        if not self.networks:
            return True
        try:
            found = ip_address(address)
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return all(
            any(found in _network(network) for network in networks) for networks in self.networks
        )


@lru_cache(maxsize=4096)
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text)
