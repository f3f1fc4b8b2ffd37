"""A change that cannot be in force: what it forbids holds all the same, and nothing else of it."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from terrace_gateway.policy.feed import NoPolicyError, PolicyFeed
from terrace_gateway.policy.records import (
    Changes,
    KeyRecord,
    KillRow,
    PriceBookRow,
    Secret,
    VersionRow,
)
from terrace_gateway.policy.saved import SavedPolicy
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.store import Head
from terrace_gateway.policy.texts import digest_of

TEXT = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")
GOOD, BAD = VersionRow(1, TEXT, digest_of(TEXT)), VersionRow(2, "version: no", digest_of("no"))
BOOK: Any = SimpleNamespace(version="broken")


def key(key_id: str) -> KeyRecord:
    return KeyRecord(
        key_id=key_id, key_hash=key_id.encode(), team="t", name="n", declared=None, app=None,
        user=None, models=None, policies=(), surfaces=None, features=None, expires_at=None,
    )  # fmt: skip


class Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    def database_now(self) -> datetime:
        return datetime.now(UTC)

    def hear(self, *_: object, **__: object) -> None:
        """Nothing to learn."""


class Source:
    """The policy tables, as the next question finds them."""

    def __init__(self, first: Changes) -> None:
        self.changes_now = first

    async def head(self) -> Head:
        return Head(self.changes_now.epoch, 1, datetime.now(UTC))

    async def changes(self, since: int) -> Changes:
        return self.changes_now


def no_broken_book(_: Snapshot | None, new: Snapshot) -> Callable[[], None]:
    if new.price_book is BOOK:
        raise ValueError("no catalogue at these prices")
    return lambda: None


def feed_of(source: Source) -> PolicyFeed:
    deployed: Any = SimpleNamespace(missing=lambda _: ())
    clock: Any = Clock()
    feed = PolicyFeed(source, clock, deployed)
    feed.before_change(no_broken_book)
    return feed


async def fed() -> tuple[PolicyFeed, Source]:
    first = Changes(-1, 1, 1, GOOD, keys=(key("k1"), key("k2")), price_book=PriceBookRow(None))
    source = Source(first)
    feed = feed_of(source)
    await feed.refresh()
    return feed, source


def refused(**more: Any) -> Changes:
    return Changes(**{"since": 1, "epoch": 2, "timeline": 1, "version": BAD, **more})


@pytest.mark.parametrize(
    "why",
    [
        {},
        {"version": None, "price_book": PriceBookRow(BOOK)},
        {"price_book": PriceBookRow(BOOK)},
        {"version": None, "price_book": PriceBookRow(None, unusable="of another release")},
    ],
    ids=["its text", "its prices", "both", "prices that cannot be read"],
)
async def test_kill_switches_and_revocations_hold(why: dict[str, Any]) -> None:
    feed, source = await fed()
    kill = KillRow("all", "", True)
    source.changes_now = refused(**why, kills=(kill,), gone_keys=("k1",), keys=(key("k3"),))
    for _ in range(3):
        with pytest.raises(NoPolicyError):
            await feed.refresh()
    snapshot = feed.current().snapshot
    assert snapshot.kills
    assert set(snapshot.keys) == {"k2"}
    assert (snapshot.version, snapshot.epoch, snapshot.price_book) == (1, 1, None)
    assert feed.problem is not None


async def test_what_it_allows_does_not_hold() -> None:
    feed, source = await fed()
    source.changes_now = refused(kills=(KillRow("all", "", True),))
    with pytest.raises(NoPolicyError):
        await feed.refresh()
    source.changes_now = refused(epoch=3, kills=(KillRow("all", "", False),))
    with pytest.raises(NoPolicyError):
        await feed.refresh()
    assert feed.current().snapshot.kills


async def test_a_key_that_is_missing_where_all_are_named_is_revoked() -> None:
    feed, source = await fed()
    source.changes_now = refused(since=-1, epoch=2, timeline=2, keys=(key("k2"), key("k3")))
    with pytest.raises(NoPolicyError):
        await feed.refresh()
    assert set(feed.current().snapshot.keys) == {"k2"}


async def refuses(feed: PolicyFeed, source: Source, **changes: Any) -> Snapshot:
    source.changes_now = refused(**changes)
    with pytest.raises(NoPolicyError):
        await feed.refresh()
    return feed.current().snapshot


SOON, LATER = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))


@pytest.mark.parametrize("since", [1, -1], ids=["of a change", "of all"])
async def test_a_secret_that_was_rotated_out_at_once_is_gone(since: int) -> None:
    feed, source = await fed()
    rotated = replace(key("k1"), key_hash=b"new", team="other", models=frozenset({"m"}))
    snapshot = await refuses(feed, source, since=since, keys=(rotated, key("k2")))
    assert set(snapshot.secrets) == {b"new", b"k2"}
    assert snapshot.keys["k1"] == replace(key("k1"), key_hash=b"new")
    assert await refuses(feed, source, since=since, keys=(rotated, key("k2"))) is snapshot


async def test_a_secret_that_was_rotated_out_ends_as_it_says() -> None:
    feed, source = await fed()
    rotated = replace(key("k1"), key_hash=b"new")
    old, unknown = Secret(b"k1", "k1", LATER), Secret(b"between", "k1", LATER)
    snapshot = await refuses(feed, source, keys=(rotated,), secrets=(old, unknown))
    assert set(snapshot.secrets) == {b"new", b"k1", b"k2"}
    assert snapshot.secrets[b"k1"] == old
    for until, holds in ((SOON, SOON), (LATER, SOON)):
        secrets = (replace(old, valid_until=until),)
        snapshot = await refuses(feed, source, keys=(rotated,), secrets=secrets)
        assert snapshot.secrets[b"k1"].valid_until == holds


async def test_a_secret_of_before_that_is_missing_where_all_are_named_has_ended() -> None:
    """The database names those that have not ended: a rotation since may have ended this one."""
    feed, source = await fed()
    keys = (replace(key("k1"), key_hash=b"second"), key("k2"))
    old, other = Secret(b"k1", "k1", LATER), Secret(b"zeroth", "k1", LATER)
    source.changes_now = Changes(1, 2, 1, None, keys=keys, secrets=(old, other))
    await feed.refresh()
    again = (replace(key("k1"), key_hash=b"third"), key("k2"))
    all_of_it = {"since": -1, "epoch": 3, "keys": again, "secrets": (other,)}
    snapshot = await refuses(feed, source, **all_of_it)
    now = datetime.now(UTC)
    valid = {
        one.key_hash
        for one in snapshot.secrets.values()
        if one.valid_until is None or one.valid_until > now
    }
    assert valid == {b"third", b"zeroth", b"k2"}
    assert await refuses(feed, source, **all_of_it) is snapshot


async def test_an_earlier_end_of_a_key_holds_and_a_later_one_does_not() -> None:
    feed, source = await fed()
    for given, holds in ((LATER, LATER), (SOON, SOON), (LATER, SOON), (None, SOON)):
        snapshot = await refuses(feed, source, keys=(replace(key("k1"), expires_at=given),))
        assert snapshot.keys["k1"].expires_at == holds


async def test_a_start_without_the_database_goes_by_it(tmp_path: Path) -> None:
    feed, source = await fed()
    clock: Any = Clock()
    saved = SavedPolicy(tmp_path, clock, pepper=b"p" * 32, boot_id="b")
    await saved.save(feed)
    rotated = replace(key("k2"), key_hash=b"new", expires_at=SOON)
    kill = KillRow("team", "t", True)
    await refuses(feed, source, kills=(kill,), gone_keys=("k1",), keys=(rotated,))
    await saved.save(feed)
    found = SavedPolicy(tmp_path, clock, pepper=b"p" * 32, boot_id="b").load()
    assert found is not None
    again = feed_of(source)
    again.restore(found[0], confirmed_at=found[1])
    before, after = feed.current().snapshot, again.current().snapshot
    assert (after.kills, after.keys, after.secrets) == (before.kills, before.keys, before.secrets)
    assert after.kills == {("team", "t")}
    assert set(after.secrets) == {b"new"}


async def test_a_saved_policy_of_another_release_is_refused_and_ends_nothing(
    tmp_path: Path,
) -> None:
    """It is signed and of our format, and this release cannot read its price book, or anything."""
    feed, source = await fed()
    clock: Any = Clock()
    saved = SavedPolicy(tmp_path, clock, pepper=b"p" * 32, boot_id="b")
    await saved.save(feed)
    document = saved._read("policy-snapshot")
    saved._write("policy-snapshot", {**document, "price_book": {"version": "b9", "colour": 1}})
    found = saved.load()
    assert found is not None
    with pytest.raises(NoPolicyError, match=r"price book 'b9'"):
        feed_of(source).restore(found[0], confirmed_at=found[1])
    for broken in ({"keys": [["k1"]]}, {"caps": [7]}, {"kills": None}):
        saved._write("policy-snapshot", {**document, **broken})
        assert saved.load() is None
    saved._write("policy-snapshot", document)
    confirmed = saved._read("policy-confirmed")
    saved._write("policy-confirmed", {"format": document["format"]})
    assert saved.load() is None
    saved._write("policy-confirmed", confirmed)
    assert saved.load() is not None


async def test_it_is_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, source = await fed()
    clock: Any = Clock()
    saved = SavedPolicy(tmp_path, clock, pepper=b"p" * 32, boot_id="b")
    written: list[str] = []
    monkeypatch.setattr(saved, "_write", lambda name, _: written.append(name))
    for _ in range(2):
        await saved.save(feed)
        await refuses(feed, source, kills=(KillRow("all", "", True),))
        await saved.save(feed)
        await saved.save(feed)
    assert written.count("policy-snapshot") == 2
