"""What a beat confirms of the policy in force."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from terrace_gateway.membership import Membership
from terrace_gateway.money.heartbeat import Beat
from terrace_gateway.policy.store import timeline_number

from .test_policy_restricts import fed


@pytest.mark.parametrize(
    ("epoch", "timeline", "confirms"),
    [(1, "00000001", True), (2, "00000001", False), (1, "00000002", False), (1, "hidden", False)],
)
async def test_only_the_same_epoch_of_the_same_time_line(
    epoch: int, timeline: str, confirms: bool
) -> None:
    feed, _ = await fed()
    part: Any = SimpleNamespace(listeners=[], hear=lambda _: None)
    Membership(part, part, part, feed)._acting = 7
    before = feed.current()
    sent_at = feed._clock.monotonic() + 1000
    beat = Beat(7, sent_at, sent_at + 89, datetime.now(UTC), timeline, False, True, epoch, ())
    part.listeners[0](beat)
    assert (feed.current().age_seconds < before.age_seconds - 900) == confirms
    assert feed._wake.is_set() != confirms


@pytest.mark.parametrize(("text", "number"), [("0000001A", 26), ("hidden", 0)])
def test_a_time_line_has_a_number(text: str, number: int) -> None:
    assert timeline_number(text) == number
