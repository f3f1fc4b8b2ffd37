"""A governance version is in force as a whole or not at all: what cannot be built of it keeps the
one before, which nothing confirms any more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import yaml
from gateway_rig.admin import Admin
from gateway_rig.guard import InProcessGuard
from gateway_rig.policy import Replica, example_text
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import until
from prometheus_client import generate_latest

from terrace_gateway.guardrails.chain import Guardrails
from terrace_gateway.policy.feed import NoPolicyError, Switch
from terrace_gateway.policy.seed import DeploymentFile
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.prices.store import PriceStore

Make = Callable[..., Awaitable[InProcessGuard]]
CLASSES = ("L", "Lu", "N", "P")
TOO_LARGE = "|".join(f"\\p{{{name}}}{{1000}}|\\P{{{name}}}{{1000}}" for name in CLASSES * 2)
"""``parse_bounded`` takes it, RE2 does not."""
CONTENT = """
guardrails:
  - name: fine
    kind: content
    words: [zeus]
  - name: large
    kind: content
    patterns:
      - {name: ok, pattern: abc}
      - {name: huge, pattern: 'HUGE'}
""".replace("HUGE", TOO_LARGE)


class Part:
    """Something that goes by the policy. While ``broken`` it cannot be prepared."""

    def __init__(self) -> None:
        self.broken = False
        self.prepared: list[int] = []
        self.version = 0

    def prepare(self, _: Snapshot | None, new: Snapshot) -> Switch:
        if self.broken:
            raise KeyError("tk-canary")
        self.prepared.append(new.version)

        def switch() -> None:
            self.version = new.version

        return switch


async def test_what_cannot_be_built_is_unconfirmed_and_tried_again(replica: Replica) -> None:
    feed, good, bad = replica.feed, Part(), Part()
    feed.before_change(good.prepare)
    feed.before_change(bad.prepare)
    bad.broken = True
    await replica.apply(example_text() + "# 2\n")
    for turn in (1, 2):  # also a second look at the same epoch
        with pytest.raises(NoPolicyError):
            await feed.refresh()
        assert len(good.prepared) == turn
    assert (good.version, bad.version) == (0, 0)
    assert feed.current().snapshot.version == 1
    assert feed.problem is not None
    assert "KeyError" in feed.problem
    assert "canary" not in feed.problem
    feed.hear(feed.current().snapshot.epoch + 1, replica.clock.monotonic())
    replica.clock.forward(1.01)
    assert not feed.current().fresh
    bad.broken = False
    await feed.refresh()
    assert feed.current().fresh
    assert feed.problem is None
    assert (feed.current().snapshot.version, good.version, bad.version) == (2, 2, 2)


async def test_a_switch_comes_before_the_snapshot_is_confirmed(replica: Replica) -> None:
    """A defect in a switch leaves the version unconfirmed as well."""

    def prepare(_: Snapshot | None, new: Snapshot) -> Switch:
        def switch() -> None:
            if new.version == 2:
                raise RuntimeError

        return switch

    replica.feed.before_change(prepare)
    await replica.apply(example_text() + "# 2\n")
    for _ in range(2):
        with pytest.raises(NoPolicyError):
            await replica.feed.refresh()
    assert replica.feed.current().snapshot.version == 1
    await replica.apply(example_text() + "# 3\n")
    await replica.feed.refresh()
    assert replica.feed.current().snapshot.version == 3


async def test_a_pattern_that_re2_refuses_is_not_committed(admin: Admin, replica: Replica) -> None:
    text = example_text() + CONTENT
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "name: huge" in one)
    for path, more in (
        ("plan", {}), ("apply", {"base_version": 1, "reason": "r"}),
    ):  # fmt: skip
        status, body = await admin.error("POST", f"/governance/{path}", {"text": text, **more})
        assert status == 400
        assert body["error"]["code"] == "governance_invalid"
        [problem] = body["problems"]
        assert problem["line"] == line
        assert (
            "guardrail 'large': pattern 'huge': RE2 refuses it: pattern too large"
            in (problem["message"])
        )
    assert [row["version"] for row in await replica.versions.versions(before=None, limit=9)] == [1]
    file = DeploymentFile(replica.versions, text)
    await file.seed()
    assert file.problem is not None
    await replica.feed.refresh()
    assert replica.feed.problem is None


def committed(postgres: Postgres, database: str, version: int, text: str) -> None:
    """A version that a guard of another release, which took it, has committed."""
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (%s, %s, %s, 'a', 'api', '{}')",
            (version, text, f"d{version}"),
        )


async def test_a_version_that_another_release_took_can_be_replaced(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    committed(postgres, database, 2, example_text() + CONTENT)
    with pytest.raises(NoPolicyError, match="huge"):
        await replica.feed.refresh()
    good = {"text": example_text() + "# good\n", "reason": "r", "base_version": 2}
    await admin.ok("POST", "/governance/apply", good)
    assert replica.feed.current().snapshot.version == 3
    assert replica.feed.problem is None


UNREADABLE = """
INSERT INTO price_book (version, document, digest, actor)
    VALUES ('b9', '{"version": "b9", "entries": [], "colour": 1}', 'd', 'a');
INSERT INTO price_book_use (version, actor, reason) VALUES ('b9', 'a', 'r');
INSERT INTO kill_switch (kind, target, reason, actor) VALUES ('team', 'team-b', 'r', 'a');
"""


async def test_beside_a_price_book_that_another_release_put_in_force_what_forbids_holds(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    _, stays = await replica.mint()
    _, goes = await replica.mint()
    await replica.feed.refresh()
    with postgres.superuser(database) as connection:
        connection.execute(UNREADABLE)
    await replica.keys.revoke(goes, actor="alice", reason=None)
    for _ in range(2):
        with pytest.raises(NoPolicyError, match=r"price book 'b9'.*apply another one"):
            await replica.feed.refresh()
    snapshot = replica.feed.current().snapshot
    assert snapshot.kills == {("team", "team-b")}
    assert (stays in snapshot.keys, goes in snapshot.keys) == (True, False)
    assert replica.feed.problem is not None
    await PriceStore(replica.database).use(None, actor="a", reason="back")
    await replica.feed.refresh()
    assert (replica.feed.problem, replica.feed.current().fresh) == (None, True)


ISSUER = {
    "name": "corp", "kind": "oidc", "issuer": "https://idp.example", "audiences": ["x"],
    "jwks_url": "https://idp.example/k",
}  # fmt: skip


def blocking(base: str, *words: str, issuers: bool) -> str:
    document = yaml.safe_load(base)
    content = {"name": "c", "kind": "content", "action": "block", "words": list(words)}
    document["guardrails"] = [content]
    document["policies"] = [{"name": "p", "guardrails": ["c"], "outage_grace_seconds": 600}]
    if issuers:
        document["authentication"] = {"issuers": [ISSUER]}
    return yaml.safe_dump(document)


async def thunder(guard: InProcessGuard, key: str) -> httpx.Response:
    return await guard.chat(key, messages=[{"role": "user", "content": "thunder"}])


async def test_a_guard_that_cannot_build_a_version_keeps_all_of_the_last(
    make_guard: Make, governance_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = await make_guard(governance=blocking(governance_text, "zeus", issuers=True))
    runtime = guard.runtime
    key = await guard.key(policies=["p"])
    assert (await thunder(guard, key)).status_code == 200
    parts = (runtime.guardrails, runtime.tokens._by_issuer, runtime.matcher._governance)
    real = Guardrails.build

    def refuses(*_: Any) -> Any:
        raise ValueError("made to fail")

    monkeypatch.setattr(Guardrails, "build", refuses)
    text = blocking(governance_text, "zeus", "thunder", issuers=False)
    await runtime.versions.apply(text, actor="a", reason="r", check_base=False)
    await until(lambda: runtime.policy.problem is not None)
    await until(lambda: not runtime.policy.current().fresh)
    assert runtime.policy.current().snapshot.version == 1
    now = (runtime.guardrails, runtime.tokens._by_issuer, runtime.matcher._governance)
    assert all(one is other for one, other in zip(parts, now, strict=True))
    said = await thunder(guard, key)  # ``limited``, and it says so
    assert (said.status_code, said.headers["x-terrace-policy"][:7]) == (200, "limited")
    ready = (await guard.http.get(guard.public_url + "/readyz")).json()
    assert ready["governance_problem"] == "policy_not_in_force"  # nothing of ours for strangers
    told = await guard.admin("GET", "/governance")
    assert "ValueError" in told["problem"]
    assert "made to fail" not in told["problem"]
    assert b"terrace_policy_problem 1.0" in generate_latest(runtime.metrics.registry)
    monkeypatch.setattr(Guardrails, "build", real)
    await until(lambda: runtime.policy.problem is None)
    assert runtime.policy.current().snapshot.version == 2
    assert not runtime.tokens._by_issuer
    assert (await thunder(guard, key)).status_code == 400
    ready = (await guard.http.get(guard.public_url + "/readyz")).json()
    assert (ready["ready"], ready["governance_problem"]) == (True, "governance_file_not_in_force")
    told = await guard.admin("GET", "/governance")
    assert told["problem"] is None
    assert "version 2 has another text" in told["note"]
    monkeypatch.setattr(runtime.deployment, "problem", "line 3: team-b has keys")
    ready = (await guard.http.get(guard.public_url + "/readyz")).json()
    assert ready["governance_problem"] == "governance_file_not_applied"
    assert (await guard.admin("GET", "/governance"))["problem"] == "line 3: team-b has keys"


async def test_a_call_whose_time_is_over_stops_no_change(make_guard: Make) -> None:
    """A kill switch that meets a call in the moment of its own deadline comes into force."""
    guard = await make_guard()
    runtime = guard.runtime
    key = await guard.new_key()
    principal = runtime.policy.current().snapshot.principal(
        runtime.policy.current().snapshot.keys[key["key_id"]]
    )
    ended = asyncio.Event()

    async def ends_slowly() -> None:
        try:
            async with asyncio.timeout(0) as deadline:
                with runtime.running.entered(principal, "sim-small", "p", deadline):
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        ended.set()
                        await until(lambda: runtime.policy.current().snapshot.kills)
        except TimeoutError:
            pass

    task = asyncio.create_task(ends_slowly())
    await ended.wait()
    await guard.admin("POST", "/kill", json={"target": "all", "reason": "incident"})
    await task
    assert runtime.policy.problem is None
    assert runtime.policy.current().snapshot.kills
