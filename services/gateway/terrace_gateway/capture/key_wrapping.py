"""The key-encryption key: it encrypts data keys and nothing else."""

import asyncio
import os
from pathlib import Path
from typing import Any, Protocol, cast

import botocore.session  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from terrace_common.names import CAPTURE_CONTEXT

KEY_BYTES = 32
NONCE_BYTES = 12


class KeyWrappingError(Exception):
    """The key-encryption key cannot be used; the message has no key in it."""


class KeyWrapper(Protocol):
    """Encrypts data keys with a key that it keeps."""

    @property
    def name(self) -> str:
        """Of the key that ``wrap`` uses now; stored beside what it wrapped."""
        ...

    async def wrap(self, data_key: bytes) -> bytes:
        """The data key, encrypted. Raises ``KeyWrappingError``."""
        ...

    async def unwrap(self, name: str, wrapped: bytes) -> bytes:
        """The data key again. Raises ``KeyWrappingError``."""
        ...


class FileKeyWrapper(KeyWrapper):
    """Keys of a file: one line per key, ``name:hex``, or the hex alone for one key named ``file``.

    The first is used; the others are there for what they encrypted before.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ``KeyWrappingError`` that names it."""
        try:
            lines = path.read_text("utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyWrappingError(f"{path}: cannot be read: {type(error).__name__}") from None
        self._keys: dict[str, AESGCM] = {}
        for line in lines:
            name, colon, text = line.rpartition(":")
            try:
                key = bytes.fromhex(text)
            except ValueError:
                key = b""
            if len(key) != KEY_BYTES:
                raise KeyWrappingError(f"{path}: a key has {KEY_BYTES} bytes in hex")
            self._keys.setdefault(name if colon else "file", AESGCM(key))
        if not self._keys:
            raise KeyWrappingError(f"{path}: there is no key")
        self._first = next(iter(self._keys))

    @property
    def name(self) -> str:
        """Of the file's first key."""
        return self._first

    async def wrap(self, data_key: bytes) -> bytes:
        """See the port."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._keys[self.name].encrypt(nonce, data_key, self.name.encode())

    async def unwrap(self, name: str, wrapped: bytes) -> bytes:
        """See the port."""
        key = self._keys.get(name)
        if key is None:
            raise KeyWrappingError(f"key-encryption key {name!r} is not in the file")
        try:
            return key.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            raise KeyWrappingError("a data key was changed or is of another key") from None


class KmsKeyWrapper(KeyWrapper):
    """A key of AWS KMS, by the identity of the pod. Calls are few: one per data key.

    An endpoint that is not AWS's (``AWS_ENDPOINT_URL_KMS``) comes from the environment.
    """

    def __init__(self, key_arn: str) -> None:
        """``key_arn``: ``arn:PARTITION:kms:REGION:ACCOUNT:key/ID``, no alias: that may move."""
        self._arn = key_arn
        self._region = key_arn.split(":")[3]
        self._client: Any = None

    @property
    def name(self) -> str:
        """The key's ARN."""
        return self._arn

    async def wrap(self, data_key: bytes) -> bytes:
        """See the port."""
        answer = await self._call(
            "encrypt", KeyId=self.name, Plaintext=data_key, EncryptionContext=CAPTURE_CONTEXT
        )
        return cast("bytes", answer["CiphertextBlob"])

    async def unwrap(self, name: str, wrapped: bytes) -> bytes:
        """See the port. ``name`` may be the ARN of an earlier key of this region."""
        answer = await self._call(
            "decrypt", KeyId=name, CiphertextBlob=wrapped, EncryptionContext=CAPTURE_CONTEXT
        )
        return cast("bytes", answer["Plaintext"])

    async def _call(self, operation: str, **arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(self._called, operation, arguments)
        except Exception as error:  # botocore raises much
            raise KeyWrappingError(f"KMS {operation}: {type(error).__name__}") from None

    def _called(self, operation: str, arguments: dict[str, Any]) -> Any:
        if self._client is None:
            session = cast("Any", botocore.session.Session())
            config = cast("Any", Config)(
                connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 2}
            )
            self._client = session.create_client("kms", region_name=self._region, config=config)
        return getattr(self._client, operation)(**arguments)
