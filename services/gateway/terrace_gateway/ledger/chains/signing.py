"""Ed25519 signatures on heads of chains. Without a key, heads are anchored unsigned."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEY_BYTES = 32


class SigningKeyError(ValueError):
    """The key file holds no key; the message names the file, never its content."""


class HeadSigner:
    """Signs with the key of this installation. ``repr`` shows the key's name only."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = key_id(self.public)

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"HeadSigner({self.key_id})"


def key_id(public: bytes) -> str:
    """How documents name a public key."""
    return hashlib.sha256(public).hexdigest()[:16]


def read_signer(path: Path) -> HeadSigner:
    """From a file with the private key's 32 bytes in hex. Raises ``SigningKeyError``."""
    try:
        seed = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise SigningKeyError(
            f"{path}: cannot read the ledger's signing key: {type(error).__name__}"
        ) from None
    if len(seed) != KEY_BYTES:
        raise SigningKeyError(f"{path}: the ledger's signing key must be {KEY_BYTES} bytes in hex")
    return HeadSigner(Ed25519PrivateKey.from_private_bytes(seed))


def read_public_keys(texts: Sequence[str]) -> tuple[bytes, ...]:
    """From hex. Raises ``SigningKeyError``."""
    found: list[bytes] = []
    for text in texts:
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise SigningKeyError(f"{text!r} is no public key of {KEY_BYTES} bytes in hex")
        found.append(key)
    return tuple(found)


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether this key signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
