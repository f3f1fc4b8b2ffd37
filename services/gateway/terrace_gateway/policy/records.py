"""Rows of the policy tables as the snapshot holds them. Plain data, no I/O."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from terrace_common.prices import PriceBook
from terrace_gateway.calls.ports import Cap

KillKind = Literal["key", "team", "org", "user", "app", "model", "provider", "all"]
CapPlace = tuple[str, str]
"""Scope and scope id."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A virtual key that is neither revoked nor long expired."""

    key_id: str
    key_hash: bytes
    team: str
    name: str | None = None
    declared: str | None = None
    """Name of the declared key whose secret this is."""
    app: str | None = None
    user: str | None = None
    models: frozenset[str] | None = None
    policies: tuple[str, ...] = ()
    surfaces: frozenset[str] | None = None
    features: frozenset[str] | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret of a key, by its keyed hash. ``valid_until`` is set for one that was rotated out."""

    key_hash: bytes
    key_id: str
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class CapRow:
    """A cap; ``live`` is false for one that was retired."""

    cap: Cap
    live: bool


@dataclass(frozen=True, slots=True)
class KillRow:
    """A kill switch; ``on`` is false for one that was lifted."""

    kind: KillKind
    target: str
    on: bool


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A governance version as it was applied."""

    version: int
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class PriceBookRow:
    """The price book in force; ``None``: the spec's own prices."""

    book: PriceBook | None
    unusable: str | None = None
    """Why this release cannot read the book that is in force."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the policy tables have that is newer than ``since`` (-1: everything), at ``epoch``."""

    since: int
    epoch: int
    timeline: int
    version: VersionRow | None
    """``None``: no newer one."""
    keys: tuple[KeyRecord, ...] = ()
    gone_keys: tuple[str, ...] = ()
    """Ids of keys that were revoked."""
    secrets: tuple[Secret, ...] = ()
    """Rotated ones."""
    caps: tuple[CapRow, ...] = ()
    kills: tuple[KillRow, ...] = ()
    price_book: "PriceBookRow | None" = None
    """``None``: no newer choice of a book."""
