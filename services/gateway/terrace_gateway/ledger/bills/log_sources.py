"""Where each provider's own log is read, by the governance in force."""

from collections.abc import Callable, Mapping
from functools import partial

from terrace_common.governance import BedrockProvider, Governance
from terrace_gateway.ledger.bills.bill_places import BillPlaces
from terrace_gateway.ledger.bills.bill_sources import BedrockBill, BillApi, BillSource
from terrace_gateway.ledger.bills.invocation_log import (
    BucketInvocationLog,
    CloudWatchInvocationLog,
    InvocationLog,
)
from terrace_gateway.ledger.bills.recorded_prices import RecordedPrices
from terrace_gateway.ledger.bills.silent_attempts import SilentAttempts
from terrace_gateway.ledger.object_store import BucketObjects, aws_client

BUCKET, LOG_GROUP = "s3://", "logs://"


class LogSources:
    """Makes sources when they are asked for, and keeps their clients and what they read."""

    def __init__(
        self,
        governance: Callable[[], Governance],
        prices: RecordedPrices,
        places: BillPlaces,
        *,
        bedrock_log: str | None,
        grace_seconds: float,
        bedrock_grace_seconds: float,
    ) -> None:
        """``bedrock_log``: ``s3://bucket/.../BedrockModelInvocationLogs`` or ``logs://group``.

        Raises ``ValueError`` for another form of it.
        """
        if bedrock_log is not None and not bedrock_log.startswith((BUCKET, LOG_GROUP)):
            raise ValueError(f"{bedrock_log}: must be s3://bucket/folder or logs://group")
        self._governance = governance
        self._prices = prices
        self._places = places
        self._bedrock_log = bedrock_log
        self._grace_seconds = grace_seconds
        self._bedrock_grace_seconds = bedrock_grace_seconds
        self._logs: dict[str, InvocationLog] = {}
        self._silent: dict[tuple[str, str], SilentAttempts] = {}

    def sources(self) -> Mapping[str, BillSource]:
        """By name of provider. One without a log of its own is not in it."""
        governance = self._governance()
        found: dict[str, BillSource] = {}
        for provider in governance.providers:
            if provider.bill_url is not None:
                found[provider.name] = BillApi(
                    provider.bill_url,
                    grace_seconds=self._grace_seconds,
                    sent_here=partial(self._places.sent_here, provider, None),
                )
            elif isinstance(provider, BedrockProvider) and self._bedrock_log is not None:
                found[provider.name] = BedrockBill(
                    self._log(self._bedrock_log, provider.region),
                    self._prices.cost,
                    grace_seconds=self._bedrock_grace_seconds,
                    longest_call_seconds=governance.defaults.hard_stream_limit_seconds,
                    sent_here=partial(self._places.sent_here, provider, self._bedrock_log),
                    silent=self._silent.setdefault(
                        (provider.name, provider.region), SilentAttempts()
                    ),
                )
        return found

    def _log(self, location: str, region: str) -> InvocationLog:
        if region not in self._logs:
            if location.startswith(BUCKET):
                bucket, _, folder = location.removeprefix(BUCKET).partition("/")
                objects = BucketObjects(aws_client("s3", region=region), bucket)
                folder = folder.strip("/")
                self._logs[region] = BucketInvocationLog(objects, folder=f"{folder}/{region}/")
            else:
                group = location.removeprefix(LOG_GROUP)
                client = aws_client("logs", region=region)
                self._logs[region] = CloudWatchInvocationLog(client, group)
        return self._logs[region]
