"""A log that said nothing is read again where it has something new, and only there."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from terrace_gateway.calls.ports import Usage
from terrace_gateway.ledger.bills.bill_sources import BedrockBill, Candidate
from terrace_gateway.ledger.bills.invocation_log import (
    BucketInvocationLog,
    InvocationLine,
    InvocationLog,
)
from terrace_gateway.ledger.bills.provider_bill import BillUnreachableError
from terrace_gateway.ledger.bills.silent_attempts import SilentAttempts
from terrace_gateway.ledger.object_store import ObjectMissingError, ObjectStore

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
LIMIT = 600  # seconds of the longest call
GRACE = 3600
OLD = 10 * DAY


class Bucket(ObjectStore):
    """In memory; remembers what was read. ``late``: comes when the first object is read."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.read: list[str] = []
        self.late: dict[str, bytes] = {}

    def versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        for key, body in sorted(self.bodies.items()):
            if key.startswith(prefix):
                yield key, str(hash(body))

    def get(self, key: str) -> bytes:
        self.read.append(key)
        self.bodies |= self.late
        if key not in self.bodies:
            raise ObjectMissingError(key)
        return self.bodies[key]

    def log(
        self, at: datetime, attempt_id: str = "", *, written: datetime | None = None,
        name: str | None = None, late: bool = False,
    ) -> str:  # fmt: skip
        """One line in an object of its own. ``written``: when, if not at once."""
        text = {
            "schemaType": "ModelInvocationLog", "timestamp": at.isoformat(), "modelId": "m",
            "requestId": f"rq-{at:%d%H%M}", "input": {"inputTokenCount": 5},
            "output": {"outputTokenCount": 7},
            "requestMetadata": {"terrace-attempt-id": attempt_id} if attempt_id else {},
        }  # fmt: skip
        key = f"f/{written or at:%Y/%m/%d/%H}/{name or f'{at:%M}{attempt_id}'}.json.gz"
        (self.late if late else self.bodies)[key] = gzip.compress(json.dumps(text).encode())
        return key

    def read_since(self) -> set[str]:
        """Keys that were read since this was asked last."""
        found, self.read = set(self.read), []
        return found


async def rate(attempt: Candidate, usage: Usage) -> int | None:
    del attempt
    return usage.input_tokens + usage.output_tokens


async def here(missing: Sequence[Candidate]) -> set[str]:
    return {one.attempt_id for one in missing}


class Passes:
    """Passes of one process. ``sent_here``: see ``BedrockBill``."""

    def __init__(self, bucket: Bucket, *, longest: float = LIMIT) -> None:
        self.log: InvocationLog = BucketInvocationLog(bucket, folder="f/")
        self.silent = SilentAttempts()
        self.sent_here = here
        self.longest = longest

    async def run(self, *candidates: Candidate) -> dict[str, int]:
        """Calls that are on the bill, by attempt."""
        bill = BedrockBill(
            self.log, rate, grace_seconds=GRACE, longest_call_seconds=self.longest,
            sent_here=self.sent_here, silent=self.silent,
        )  # fmt: skip
        return {name: one.calls for name, one in (await bill.billed(candidates)).items()}


def candidate(
    name: str = "one", at: datetime = NOON, *, age: timedelta = OLD, state: str = "unknown",
    request_id: str | None = None,
) -> Candidate:  # fmt: skip
    return Candidate(
        name, "bedrock", state, age.total_seconds(), at, "m", upstream_request_id=request_id
    )


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def passes(bucket: Bucket) -> Passes:
    return Passes(bucket)


async def test_what_nothing_new_can_decide_is_not_read_again(
    bucket: Bucket, passes: Passes
) -> None:
    before = bucket.log(NOON - 10 * MINUTE)  # and the log ends
    assert await passes.run(candidate()) == {}
    assert bucket.read_since() == {before}
    for _ in range(3):
        assert await passes.run(candidate()) == {}
    assert bucket.read_since() == set()
    assert await Passes(bucket).run(candidate()) == {}  # another process knows nothing of it
    assert bucket.read_since() == {before}


async def test_an_object_that_comes_late_is_read_and_decides(
    bucket: Bucket, passes: Passes
) -> None:
    """Hours later, into the folder of the hour when it was written."""
    bucket.log(NOON - 10 * MINUTE)
    assert await passes.run(candidate()) == {}
    bucket.log(NOON + 5 * MINUTE, "one", written=NOON + 119 * MINUTE)
    assert await passes.run(candidate()) == {"one": 1}


async def test_that_the_log_was_on_is_seen_when_its_line_comes_late(
    bucket: Bucket, passes: Passes
) -> None:
    bucket.log(NOON - 10 * MINUTE)
    assert await passes.run(candidate()) == {}
    bucket.log(NOON + 15 * MINUTE)
    assert await passes.run(candidate()) == {"one": 0}


async def test_an_object_that_comes_while_the_log_is_read_is_not_lost(
    bucket: Bucket, passes: Passes
) -> None:
    bucket.log(NOON - 10 * MINUTE)
    # Into a folder that has been listed already.
    bucket.log(NOON + 5 * MINUTE, "one", written=NOON - 5 * MINUTE, late=True)
    assert await passes.run(candidate()) == {}
    assert await passes.run(candidate()) == {"one": 1}
    bucket.read_since()
    assert await passes.run(candidate()) == {"one": 1}  # as long as it is asked for
    assert bucket.read_since()


async def test_an_object_that_is_another_one_under_its_name_is_read(
    bucket: Bucket, passes: Passes
) -> None:
    bucket.log(NOON - 10 * MINUTE, name="same")
    assert await passes.run(candidate()) == {}
    bucket.bodies.clear()
    bucket.log(NOON + 5 * MINUTE, "one", written=NOON - 10 * MINUTE, name="same")
    assert await passes.run(candidate()) == {"one": 1}


async def test_the_grace_ends_without_another_read(bucket: Bucket, passes: Passes) -> None:
    """What was read decides as soon as it may, and where it was sent is asked each time."""
    for minute in (-10, 15):
        bucket.log(NOON + minute * MINUTE)
    young = candidate(age=timedelta(seconds=GRACE + LIMIT - 1))
    assert await passes.run(young) == {}
    bucket.read_since()

    async def elsewhere(missing: Sequence[Candidate]) -> set[str]:
        assert [one.attempt_id for one in missing] == ["one"]
        return set()

    passes.sent_here = elsewhere
    assert await passes.run(candidate()) == {}
    passes.sent_here = here
    assert await passes.run(candidate()) == {"one": 0}
    assert bucket.read_since() == set()


async def test_other_stretches_are_read_for_whom_they_say_something_new(
    bucket: Bucket, passes: Passes
) -> None:
    old = [bucket.log(NOON - 10 * MINUTE), bucket.log(NOON + 40 * MINUTE)]
    new = bucket.log(NOON + DAY, "two")
    stuck = candidate()
    assert await passes.run(stuck) == {}
    assert bucket.read_since() == set(old)
    two = candidate("two", NOON + DAY)
    assert await passes.run(stuck, two) == {"two": 1}
    assert bucket.read_since() == {new}
    # Beside it, in the same stretch, somebody who has not been looked for there yet.
    bucket.log(NOON + MINUTE, "three")
    assert await passes.run(stuck, candidate("three", NOON + MINUTE)) == {"three": 1}


async def test_one_that_joins_a_stretch_is_looked_for_in_it(bucket: Bucket, passes: Passes) -> None:
    """Its line is there since the first pass, which looked for somebody else."""
    bucket.log(NOON + MINUTE, "three")
    assert await passes.run(candidate()) == {}
    assert await passes.run(candidate(), candidate("three", NOON)) == {"three": 1}


async def test_a_stretch_that_told_of_anybody_is_read_again(bucket: Bucket, passes: Passes) -> None:
    """Also of one whose time is another: two nodes' clocks, say."""
    bucket.log(NOON - 10 * MINUTE)
    bucket.log(NOON + DAY, "one")
    for _ in range(3):
        assert await passes.run(candidate(), candidate("two", NOON + DAY)) == {"one": 1}


async def test_what_is_looked_for_may_change(bucket: Bucket, passes: Passes) -> None:
    """A request id that came since, a longer limit of calls."""
    bucket.log(NOON - 10 * MINUTE)
    bucket.log(NOON + 5 * MINUTE)
    assert await passes.run(candidate()) == {}
    assert await passes.run(candidate(request_id="rq-201205")) == {"one": 1}
    bucket.log(NOON + 15 * MINUTE)
    beside = replace(candidate("beside"), hard_limit_seconds=3600)  # the stretch stays the same
    passes.longest = 1200.0
    assert await passes.run(candidate(), beside) == {}
    passes.longest = LIMIT
    assert await passes.run(candidate(), beside) == {"one": 0}


async def test_settled_attempts_are_compared_at_each_recheck(
    bucket: Bucket, passes: Passes
) -> None:
    bucket.log(NOON + MINUTE, "settled")
    for _ in range(2):
        assert await passes.run(candidate(), candidate("settled", state="settled")) == {
            "settled": 1
        }


async def test_a_log_that_cannot_be_read_says_nothing(bucket: Bucket, passes: Passes) -> None:
    key = bucket.log(NOON + 5 * MINUTE, "one")
    whole, bucket.bodies[key] = bucket.bodies[key], b"broken"
    for _ in range(2):
        with pytest.raises(BillUnreachableError):
            await passes.run(candidate())
    bucket.bodies[key] = whole
    assert await passes.run(candidate()) == {"one": 1}


async def test_a_log_that_cannot_tell_what_it_has_is_read_each_time() -> None:
    class Group:
        """As CloudWatch's."""

        def __init__(self) -> None:
            self.reads = 0

        def lines(self, begin: datetime, end: datetime) -> Iterator[InvocationLine]:
            del begin, end
            self.reads += 1
            return iter(())

        def contents(self, begin: datetime, end: datetime) -> bytes | None:
            del begin, end

    passes = Passes(Bucket())
    passes.log = group = Group()
    for _ in range(3):
        assert await passes.run(candidate()) == {}
    assert group.reads == 3
