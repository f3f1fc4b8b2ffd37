"""Bedrock's log of invocations on a fake AWS, and a reconciler that reads it."""

import gzip
import json
import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway_rig.fake_aws import FakeAws
from gateway_rig.ledger_rig import LedgerRig
from terrace_common.names import NAMED_ATTEMPT_PREFIX
from terrace_gateway.calls.ports import OpenRecord, Usage
from terrace_gateway.ledger.bills.bill_sources import BedrockBill, Candidate, Rate
from terrace_gateway.ledger.bills.invocation_log import (
    BucketInvocationLog,
    CloudWatchInvocationLog,
    InvocationLog,
)
from terrace_gateway.ledger.bills.reconcile import Reconciler
from terrace_gateway.ledger.object_store import BucketObjects, aws_client

FOLDER = "AWSLogs/123456789012/BedrockModelInvocationLogs/us-east-1/"
LONGEST = 60.0


class Bedrock:
    """The provider: charges calls and logs them, to a bucket or a group."""

    def __init__(self, aws: FakeAws, kind: str) -> None:
        self._aws, self._kind = aws, kind
        self._written = 0
        aws.objects["logs"] = {}
        aws.events["bedrock"] = []

    def log(
        self,
        opened: OpenRecord | None,
        tokens: tuple[int, int],
        *,
        at: datetime | None = None,
        **extra: Any,
    ) -> None:
        at = at or (datetime.now(UTC) if opened is None else opened.opened_at)
        self._written += 1
        line: dict[str, Any] = {
            "schemaType": "ModelInvocationLog", "schemaVersion": "1.0",
            "timestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"), "accountId": "123456789012",
            "region": "us-east-1", "requestId": f"rq-{self._written}", "operation": "Converse",
            "modelId": "anthropic.claude", "input": {"inputTokenCount": tokens[0]},
            "output": {"outputTokenCount": tokens[1]},
            "requestMetadata": (
                {} if opened is None else {"terrace-attempt-id": opened.attempt_id}
            ),
        }  # fmt: skip
        text = json.dumps(line | extra)
        if self._kind == "bucket":
            name = f"{FOLDER}{at:%Y/%m/%d/%H}/{self._written}.json.gz"
            body = gzip.compress(f"{text}\nnot a line\n".encode())
            self._aws.objects["logs"][name] = body
            self._aws.objects["logs"][f"{FOLDER}{at:%Y/%m/%d/%H}/data/x.json.gz"] = b"large body"
        else:
            stamp = int(at.timestamp() * 1000)
            self._aws.events["bedrock"].append({"timestamp": stamp, "message": text})

    def log_around(self, moment: datetime, minutes: int = 12) -> None:
        """Somebody else's calls before and after: they show that the log is on."""
        for at in (moment - timedelta(minutes=minutes), moment + timedelta(minutes=minutes)):
            self.log(None, (1, 1), at=at)

    def reader(self) -> InvocationLog:
        if self._kind == "bucket":
            objects = BucketObjects(aws_client("s3", region="us-east-1"), "logs")
            return BucketInvocationLog(objects, folder=FOLDER)
        return CloudWatchInvocationLog(aws_client("logs", region="us-east-1"), "bedrock")


def named() -> str:
    """Id of an attempt that Bedrock was told of, on whatever surface."""
    return f"{NAMED_ATTEMPT_PREFIX}{uuid.uuid4().hex}"


async def price(attempt: Candidate, usage: Usage) -> int | None:
    """Ten micro-USD a token, one for a cached one."""
    del attempt
    return 10 * (usage.input_tokens + usage.output_tokens) + usage.cache_read_tokens


def reconciler(
    rig: LedgerRig,
    bedrock: Bedrock,
    rate: Rate = price,
    provider: str = "bedrock",
    elsewhere: Collection[str] = (),
) -> Reconciler:
    """``elsewhere``: ids of attempts that were sent to another region."""

    async def sent_here(missing: Sequence[Candidate]) -> set[str]:
        return {one.attempt_id for one in missing}.difference(elsewhere)

    bill = BedrockBill(
        bedrock.reader(), rate, grace_seconds=60, longest_call_seconds=LONGEST, sent_here=sent_here
    )
    return Reconciler(rig.database, lambda: {provider: bill}, replica="gateway-0")


async def sums(rig: LedgerRig) -> dict[str, int]:
    return dict(
        await rig.rows(
            "SELECT attempt_id, sum(amount_micro_usd)::bigint FROM ledger_entry"
            " WHERE attempt_id IS NOT NULL GROUP BY 1"
        )
    )
