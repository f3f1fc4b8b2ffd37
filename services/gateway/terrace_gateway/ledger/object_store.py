"""Objects outside of the database: a directory, or an S3-compatible bucket. Calls block."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

import botocore.session  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
)

TIMEOUT_SECONDS = 20


class ObjectStoreError(Exception):
    """The store did not do it; the message names store and reason."""


class ObjectMissingError(ObjectStoreError):
    """There is no such object."""


class ObjectTakenError(ObjectStoreError):
    """Something else is there under this name."""


class ObjectStore(Protocol):
    """Keys are paths with slashes. All methods raise ``ObjectStoreError``."""

    def put(self, key: str, body: bytes, *, retain_until: datetime | None = None) -> bool:
        """Store what is not there yet. False: the key was there, and stays as it was."""
        ...

    def get(self, key: str) -> bytes:
        """The body. Raises ``ObjectMissingError`` if the store says that it is not there."""
        ...

    def keys(self, prefix: str) -> Iterator[str]:
        """All keys with this prefix, in their order."""
        ...

    def versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The same, each with a word that is another one whenever its body is."""
        ...

    @property
    def location(self) -> str:
        """For people: where it is."""
        ...


class DirectoryObjects:
    """Files below a directory. No protection from who can write there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def location(self) -> str:
        """The directory."""
        return str(self._path)

    def put(self, key: str, body: bytes, *, retain_until: datetime | None = None) -> bool:
        """See ``ObjectStore``. Appears whole or not at all; nothing retains it."""
        del retain_until
        target = self._path / key
        # Not by process id: a shared volume has one of each container, and a process has threads.
        part = target.with_name(f".{target.name}.{uuid4().hex}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            part.chmod(0o440)
            try:
                os.link(part, target)
            except FileExistsError:
                return False
            finally:
                part.unlink()
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise ObjectStoreError(f"{target}: {error.strerror}") from error
        return True

    def get(self, key: str) -> bytes:
        """See ``ObjectStore``."""
        try:
            return (self._path / key).read_bytes()
        except FileNotFoundError as error:
            raise ObjectMissingError(f"{self._path / key}: {error.strerror}") from error
        except OSError as error:
            raise ObjectStoreError(f"{self._path / key}: {error.strerror}") from error

    def keys(self, prefix: str) -> Iterator[str]:
        """See ``ObjectStore``."""
        found = (
            path.relative_to(self._path).as_posix()
            for path in self._path.rglob("*")
            if path.is_file() and not path.name.endswith(".part")
        )
        yield from sorted(key for key in found if key.startswith(prefix))

    def versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """See ``ObjectStore``."""
        for key in self.keys(prefix):
            yield key, hashlib.sha256(self.get(key)).hexdigest()


class BucketObjects:
    """A bucket. With Object Lock nobody takes an object back before its time."""

    def __init__(self, client: Any, bucket: str) -> None:
        """``client``: botocore's of s3."""
        self._client = client
        self._bucket = bucket

    @property
    def location(self) -> str:
        """The bucket's URL."""
        return f"s3://{self._bucket}"

    def put(self, key: str, body: bytes, *, retain_until: datetime | None = None) -> bool:
        """See ``ObjectStore``. ``retain_until`` needs a bucket with Object Lock."""
        options: dict[str, Any] = {}
        if retain_until is not None:
            options = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": retain_until}
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*",
                ChecksumAlgorithm="SHA256", **options,
            )  # fmt: skip
        except ClientError as error:
            if _code(error) in ("PreconditionFailed", "412"):
                return False
            raise self._error(error) from error
        except BotoCoreError as error:
            raise self._error(error) from error
        return True

    def get(self, key: str) -> bytes:
        """See ``ObjectStore``."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            with answer["Body"] as body:
                return cast("bytes", body.read())
        except (ClientError, BotoCoreError) as error:
            raise self._error(error) from error

    def keys(self, prefix: str) -> Iterator[str]:
        """See ``ObjectStore``."""
        for key, _ in self.versions(prefix):
            yield key

    def versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """See ``ObjectStore``."""
        pages = self._client.get_paginator("list_objects_v2")
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for item in page.get("Contents", ()):
                    version = f"{item.get('ETag')} {item.get('Size')} {item.get('LastModified')}"
                    yield str(item["Key"]), version
        except (ClientError, BotoCoreError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> ObjectStoreError:
        what = _code(error) if isinstance(error, ClientError) else type(error).__name__
        kind = ObjectMissingError if what in ("NoSuchKey", "404") else ObjectStoreError
        return kind(f"bucket {self._bucket}: {what}")


def store_named(objects: ObjectStore, key: str, body: bytes) -> None:
    """Store what its key names by its content: what is there already must be the same.

    Raises ``ObjectStoreError``: ``ObjectTakenError`` if something else is there.
    """
    if not objects.put(key, body) and objects.get(key) != body:
        raise ObjectTakenError(f"{objects.location}/{key} is there, and is something else")


def aws_client(service: str, *, region: str | None = None) -> Any:
    """A client of botocore's with bounded waits. Credentials, and an endpoint that is not AWS's
    (``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL_CLOUDWATCH_LOGS``), come from the environment, or
    the pod's identity."""
    session = cast("Any", botocore.session.Session())
    return session.create_client(
        service,
        region_name=region,
        config=Config(
            connect_timeout=TIMEOUT_SECONDS,
            read_timeout=TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": 3},
        ),
    )


def _code(error: Exception) -> str:
    response = cast("Any", error).response
    return str(response.get("Error", {}).get("Code", "error"))


def open_objects(location: str) -> ObjectStore:
    """The store at ``s3://bucket`` or in a directory. Makes no call.

    Raises ``ValueError`` for another scheme.
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        return DirectoryObjects(Path(location))
    bucket = rest.strip("/")
    if scheme != "s3" or not bucket or "/" in bucket:
        raise ValueError(f"{location}: must be a directory or s3://bucket")
    return BucketObjects(aws_client("s3"), bucket)
