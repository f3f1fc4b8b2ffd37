"""Amazon Bedrock's own log of model invocations, read from S3 or CloudWatch Logs.

A line has the request's metadata (our attempt id), its request id, and what Bedrock counted. Calls
block, so make them in a thread. Lines come minutes after the call.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Protocol, cast

from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
)

from terrace_common.names import ATTEMPT_ID_METADATA
from terrace_gateway.ledger.object_store import ObjectStore, ObjectStoreError

MAX_OBJECT_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
"""Bodies of more than 100 KB are in objects of their own; what is longer than this is no line."""


class InvocationLogError(Exception):
    """The log could not be read."""


@dataclass(frozen=True, slots=True)
class InvocationLine:
    """One call as Bedrock logged it. Cache tokens are not part of ``input_tokens``."""

    at: datetime
    request_id: str
    attempt_id: str | None
    model_id: str
    operation: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    error: str | None


class InvocationLog(Protocol):
    """Where lines are read from."""

    def lines(self, begin: datetime, end: datetime) -> Iterator[InvocationLine]:
        """Lines of calls in this time, in no order. Raises ``InvocationLogError``."""
        ...

    def contents(self, begin: datetime, end: datetime) -> bytes | None:
        """A digest of what ``lines`` would read: while it is the same, so are they. ``None``: only
        reading tells. Raises ``InvocationLogError``."""
        ...


class BucketInvocationLog:
    """Gzipped JSON lines, in folders by hour."""

    def __init__(self, objects: ObjectStore, *, folder: str) -> None:
        """``folder``: of one region, ``.../BedrockModelInvocationLogs/REGION/``."""
        self._objects = objects
        self._folder = folder

    def lines(self, begin: datetime, end: datetime) -> Iterator[InvocationLine]:
        """See ``InvocationLog``."""
        for key, _ in self._versions(begin, end):
            try:
                for line in _unzipped(self._objects.get(key), key):
                    if (found := parse_line(line)) and begin <= found.at <= end:
                        yield found
            except ObjectStoreError as error:
                raise InvocationLogError(str(error)) from error

    def contents(self, begin: datetime, end: datetime) -> bytes | None:
        """See ``InvocationLog``. Names and versions of objects, which a bucket lists."""
        digest = sha256()
        for key, version in self._versions(begin, end):
            digest.update(f"{key}\n{version}\n".encode())
        return digest.digest()

    def _versions(self, begin: datetime, end: datetime) -> Iterator[tuple[str, str]]:
        """Objects for this time. Also of the hour behind: an object is named by when it was
        written, which is after the call."""
        hour = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        while hour <= end + timedelta(hours=1):
            try:
                # `data/` holds bodies that were too large for a line.
                for key, version in self._objects.versions(f"{self._folder}{hour:%Y/%m/%d/%H}/"):
                    if key.endswith(".json.gz") and "/data/" not in key:
                        yield key, version
            except ObjectStoreError as error:
                raise InvocationLogError(str(error)) from error
            hour += timedelta(hours=1)


class CloudWatchInvocationLog:
    """Events of a log group."""

    def __init__(self, client: Any, group: str) -> None:
        """``client``: botocore's of logs."""
        self._client = client
        self._group = group

    def lines(self, begin: datetime, end: datetime) -> Iterator[InvocationLine]:
        """See ``InvocationLog``."""
        pages = self._client.get_paginator("filter_log_events")
        span = {
            "startTime": int(begin.timestamp() * 1000),
            "endTime": int((end + timedelta(hours=1)).timestamp() * 1000),
        }
        try:
            for page in pages.paginate(logGroupName=self._group, **span):
                for event in page.get("events", ()):
                    found = parse_line(event["message"].encode())
                    if found is not None and begin <= found.at <= end:
                        yield found
        except ClientError as error:
            code = cast("Any", error).response.get("Error", {}).get("Code", "error")
            raise InvocationLogError(f"log group {self._group}: {code}") from error
        except BotoCoreError as error:
            raise InvocationLogError(f"log group {self._group}: {type(error).__name__}") from error

    def contents(self, begin: datetime, end: datetime) -> bytes | None:
        """See ``InvocationLog``. What a group says of its streams may be an hour behind."""
        del begin, end


def parse_line(line: bytes) -> InvocationLine | None:
    """``None`` for what is no line of this log."""
    try:
        fields = cast("dict[str, Any]", json.loads(line))
        if fields.get("schemaType") != "ModelInvocationLog":
            return None
        metadata: dict[str, Any] = fields.get("requestMetadata") or {}
        given: dict[str, Any] = fields.get("input") or {}
        answered: dict[str, Any] = fields.get("output") or {}
        attempt_id = metadata.get(ATTEMPT_ID_METADATA)
        return InvocationLine(
            at=datetime.fromisoformat(str(fields["timestamp"])).astimezone(UTC),
            request_id=str(fields["requestId"]),
            attempt_id=None if attempt_id is None else str(attempt_id),
            model_id=str(fields.get("modelId", "")),
            operation=str(fields.get("operation", "")),
            input_tokens=_count(given, "inputTokenCount"),
            output_tokens=_count(answered, "outputTokenCount"),
            cache_read_tokens=_count(given, "cacheReadInputTokenCount"),
            cache_write_tokens=_count(given, "cacheWriteInputTokenCount"),
            error=None if fields.get("errorCode") is None else str(fields["errorCode"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _count(part: dict[str, Any], name: str) -> int:
    value = int(part.get(name) or 0)
    if value < 0:
        raise ValueError(name)
    return value


def _unzipped(body: bytes, key: str) -> Iterator[bytes]:
    """Line by line: an object may hold more than a guard may."""
    read = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            while line := file.readline(MAX_LINE_BYTES):
                read += len(line)
                if read > MAX_OBJECT_BYTES:
                    raise InvocationLogError(f"{key}: larger than {MAX_OBJECT_BYTES} bytes")
                yield line
    except EOFError as error:
        raise InvocationLogError(f"{key}: cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvocationLogError(f"{key}: not gzip") from error
