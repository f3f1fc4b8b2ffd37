"""Envelope encryption of captures: AES-256-GCM with data keys, which are kept wrapped."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from terrace_gateway.capture.key_wrapping import (
    KEY_BYTES,
    NONCE_BYTES,
    FileKeyWrapper,
    KeyWrapper,
    KeyWrappingError,
    KmsKeyWrapper,
)
from terrace_gateway.clock import boottime

KEY_USES = 4096
"""Captures per data key, far below what random nonces allow (2^32)."""
KEY_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is stored."""

    kek: str
    wrapped_key: bytes
    nonce: bytes
    data: bytes


@dataclass(slots=True)
class _DataKey:
    kek: str
    wrapped: bytes
    cipher: AESGCM = field(repr=False)
    made_at: float
    uses: int = 0


class Sealer:
    """Seals and opens. A data key lives in memory for ``KEY_SECONDS`` at most."""

    def __init__(self, wrapper: KeyWrapper, *, monotonic: Callable[[], float] = boottime) -> None:
        self._wrapper = wrapper
        self._monotonic = monotonic
        self._key: _DataKey | None = None

    async def seal(self, plain: bytes, *, bound_to: bytes) -> Sealed:
        """Encrypted; ``bound_to`` must be shown again to open it. Raises ``KeyWrappingError``."""
        key = self._key
        now = self._monotonic()
        if key is None or key.uses >= KEY_USES or now - key.made_at > KEY_SECONDS:
            secret = AESGCM.generate_key(KEY_BYTES * 8)
            wrapped = await self._wrapper.wrap(secret)
            key = self._key = _DataKey(self._wrapper.name, wrapped, AESGCM(secret), now)
        key.uses += 1
        nonce = os.urandom(NONCE_BYTES)
        return Sealed(key.kek, key.wrapped, nonce, key.cipher.encrypt(nonce, plain, bound_to))

    async def open(self, sealed: Sealed, *, bound_to: bytes) -> bytes:
        """The plain text. Raises ``KeyWrappingError``, also for what was changed."""
        secret = await self._wrapper.unwrap(sealed.kek, sealed.wrapped_key)
        try:
            return AESGCM(secret).decrypt(sealed.nonce, sealed.data, bound_to)
        except (InvalidTag, ValueError):
            raise KeyWrappingError("the capture was changed, or is another request's") from None


def open_cipher(path: Path | None, *, kms_key_arn: str | None = None) -> Sealer | None:
    """With the key-encryption keys of a file, else with a key of KMS; ``None`` without either:
    nothing can be captured. Calls nobody.

    Raises ``KeyWrappingError`` that names the file.
    """
    if path is not None:
        return Sealer(FileKeyWrapper(path))
    return None if kms_key_arn is None else Sealer(KmsKeyWrapper(kms_key_arn))
