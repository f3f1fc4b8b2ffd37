"""The last policy on the replica's volume, signed, for a start without a database.

Two files: the snapshot, written when it changes, and a small one that is written every second and
says when the snapshot was last confirmed. Both are signed with a key that only holders of the
pepper can make. The age of a confirmation is measured on the clock of one boot of one machine; of
another boot nothing is known about it, and the snapshot is not used.
"""

import asyncio
import hashlib
import hmac
import json
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import structlog

from terrace_gateway.calls.ports import Cap, Window
from terrace_gateway.clock import Clock
from terrace_gateway.policy.feed import NoPolicyError, PolicyFeed
from terrace_gateway.policy.records import (
    CapRow,
    Changes,
    KeyRecord,
    KillRow,
    PriceBookRow,
    Secret,
    VersionRow,
)
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.store import EVERYTHING
from terrace_gateway.prices.store import UnreadableBookError, read_book

log = structlog.get_logger()

FORMAT = 2
EVERY_SECONDS = 1.0
MAX_AGE_SECONDS = 3600.0  # a policy's outage_grace_seconds may be shorter, never longer than this
SNAPSHOT, CONFIRMED = "policy-snapshot", "policy-confirmed"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _RefusedError(Exception):
    """Why the files are not gone by; for people."""


class SavedPolicy:
    """The two files in ``folder``. ``pepper`` is that of the virtual keys."""

    def __init__(
        self, folder: Path, clock: Clock, *, pepper: bytes, boot_id: str | None = None
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._key = hmac.new(pepper, b"terrace policy snapshot", hashlib.sha256).digest()
        self._boot_id = BOOT_ID.read_text().strip() if boot_id is None else boot_id
        self._saved: Snapshot | None = None

    async def run(self, feed: PolicyFeed) -> None:
        """Save what is in force, and when it was confirmed, until cancelled."""
        while True:
            try:
                await self.save(feed)
            except OSError as error:  # a full disk costs the next start its snapshot, no call
                log.warning("policy_not_saved", error=type(error).__name__)
            await asyncio.sleep(EVERY_SECONDS)

    async def save(self, feed: PolicyFeed) -> None:
        """Write what changed. Raises ``OSError``."""
        try:
            in_force = feed.current()
        except NoPolicyError:
            return
        confirmed_at = self._clock.monotonic() - in_force.age_seconds
        snapshot = in_force.snapshot
        # Not its epoch: what forbids is taken over from a change whose epoch is not in force.
        if snapshot is not self._saved:
            document = await asyncio.to_thread(_document, snapshot)
            await asyncio.to_thread(self._write, SNAPSHOT, document)
            self._saved = snapshot
        self._write(
            CONFIRMED,
            {
                "format": FORMAT, "boot_id": self._boot_id, "confirmed_at": confirmed_at,
                "timeline": snapshot.timeline, "epoch": snapshot.epoch,
            },
        )  # fmt: skip

    def load(self) -> tuple[Changes, float] | None:
        """What the files have and when it was confirmed (monotonic), if both are ours, belong
        together and are of this boot; else ``None``."""
        try:
            confirmed, document = self._read(CONFIRMED), self._read(SNAPSHOT)
            return self._known(confirmed, document)
        except FileNotFoundError:
            return None
        except _RefusedError as refused:
            log.warning("saved_policy_refused", why=str(refused))
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"it cannot be read here ({type(error).__name__})"  # signed, of another release
            log.warning("saved_policy_refused", why=why)
        return None

    def _known(self, confirmed: dict[str, Any], document: dict[str, Any]) -> tuple[Changes, float]:
        confirmed_at = float(confirmed["confirmed_at"])
        age = self._clock.monotonic() - confirmed_at
        same = (confirmed["timeline"], confirmed["epoch"]) == (
            document["timeline"], document["epoch"],
        )  # fmt: skip
        if confirmed["boot_id"] != self._boot_id or not 0 <= age <= MAX_AGE_SECONDS or not same:
            raise _RefusedError("of another boot, too old, or torn")
        return _changes(document), confirmed_at

    def _write(self, name: str, document: dict[str, Any]) -> None:
        body = json.dumps(document, separators=(",", ":")).encode()
        # The name is signed as well: one file cannot be passed off as the other.
        mac = hmac.new(self._key, name.encode() + b"\n" + body, hashlib.sha256).hexdigest()
        fresh = self._folder / f"{name}.new"
        fresh.write_bytes(mac.encode() + b"\n" + body)
        fresh.replace(self._folder / name)

    def _read(self, name: str) -> dict[str, Any]:
        mac, _, body = (self._folder / name).read_bytes().partition(b"\n")
        wanted = hmac.new(self._key, name.encode() + b"\n" + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(mac, wanted.encode()):
            raise _RefusedError(f"{name} is not signed by this deployment")
        document = cast("dict[str, Any]", json.loads(body))
        if document.get("format") != FORMAT:
            raise _RefusedError(f"{name} has another format")
        return document


def _document(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "epoch": snapshot.epoch,
        "timeline": snapshot.timeline,
        "version": [snapshot.version, snapshot.text, snapshot.digest],
        "keys": [
            [
                key.key_id, key.key_hash.hex(), key.team, key.name, key.declared, key.app, key.user,
                _listed(key.models), list(key.policies), _listed(key.surfaces),
                _listed(key.features), _text(key.expires_at),
            ]
            for key in snapshot.keys.values()
        ],
        "secrets": [
            [secret.key_hash.hex(), secret.key_id, _text(secret.valid_until)]
            for secret in snapshot.secrets.values()
            if secret.valid_until is not None
        ],
        "caps": [
            [
                cap.cap_id, cap.scope, cap.scope_id, cap.dimension, cap.window.kind,
                cap.window.seconds, cap.window.unit, cap.window.zone, cap.amount, cap.mode,
                list(cap.thresholds),
            ]
            for caps in snapshot.caps.values()
            for cap in caps
        ],
        "price_book": (
            None if snapshot.price_book is None else snapshot.price_book.model_dump(mode="json")
        ),
        "kills": [list(kill) for kill in sorted(snapshot.kills)],
    }  # fmt: skip


def _changes(document: dict[str, Any]) -> Changes:
    return Changes(
        since=EVERYTHING,
        epoch=document["epoch"],
        timeline=document["timeline"],
        version=VersionRow(*document["version"]),
        keys=tuple(
            KeyRecord(
                key_id=row[0], key_hash=bytes.fromhex(row[1]), team=row[2], name=row[3],
                declared=row[4], app=row[5], user=row[6], models=_set(row[7]),
                policies=tuple(row[8]), surfaces=_set(row[9]), features=_set(row[10]),
                expires_at=_time(row[11]),
            )
            for row in document["keys"]
        ),
        secrets=tuple(
            Secret(bytes.fromhex(row[0]), row[1], _time(row[2])) for row in document["secrets"]
        ),
        caps=tuple(
            CapRow(
                Cap(
                    cap_id=row[0], scope=row[1], scope_id=row[2], dimension=row[3],
                    window=Window(row[4], row[5], row[6], row[7]), amount=row[8], mode=row[9],
                    thresholds=tuple(row[10]),
                ),
                live=True,
            )
            for row in document["caps"]
        ),
        price_book=_book(document["price_book"]),
        kills=tuple(KillRow(row[0], row[1], on=True) for row in document["kills"]),
    )  # fmt: skip


def _book(document: dict[str, Any] | None) -> PriceBookRow:
    try:
        return PriceBookRow(None if document is None else read_book(document))
    except UnreadableBookError as error:
        return PriceBookRow(None, unusable=str(error))


def _listed(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _set(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
