"""Heads of chains, kept where who can write the database cannot write.

An anchor says: at this time the chain of this writer had this many entries and this hash. A chain
that is shorter or different later was cut or changed.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from terrace_common.names import ANCHOR_PREFIX
from terrace_gateway.ledger.chains.signing import HeadSigner, is_signed
from terrace_gateway.ledger.object_store import ObjectStore
from terrace_gateway.spool.records import canonical_bytes, moment_text

_NAME = re.compile(r"(?P<writer>[\w-]+)/(?P<seq>\d{20})(?P<sealed>-sealed)?\.json")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A head. ``signature`` and ``key`` are ``None`` without a signing key."""

    writer: str
    seq: int
    hash: bytes
    sealed: bool
    signed_at: str
    key: str | None = None
    signature: bytes | None = None

    @property
    def name(self) -> str:
        """Its place in a store: one for each head of a writer, never written twice."""
        return f"{self.writer}/{self.seq:020d}{'-sealed' if self.sealed else ''}.json"

    def message(self) -> bytes:
        """What is signed."""
        return canonical_bytes(
            {
                "writer": self.writer, "seq": self.seq, "hash": self.hash.hex(),
                "sealed": self.sealed, "signed_at": self.signed_at,
            }
        )  # fmt: skip

    def document(self) -> bytes:
        """As it is stored."""
        fields = json.loads(self.message())
        if self.signature is not None:
            fields |= {"key": self.key, "signature": self.signature.hex()}
        return canonical_bytes(fields)

    def is_signed_by(self, publics: Iterable[bytes]) -> bool:
        """Whether one of these public keys signed it."""
        signature = self.signature
        if signature is None:
            return False
        return any(is_signed(public, self.message(), signature) for public in publics)


def make_anchor(
    writer: str, seq: int, digest: bytes, *, sealed: bool, at: datetime, signer: HeadSigner | None
) -> Anchor:
    """A head at database time ``at``, signed if there is a key."""
    bare = Anchor(writer, seq, digest, sealed, moment_text(at))
    if signer is None:
        return bare
    return Anchor(
        writer, seq, digest, sealed, bare.signed_at, signer.key_id, signer.sign(bare.message())
    )


def read_anchor(document: bytes) -> Anchor:
    """Raises ``ValueError`` for what is no anchor."""
    try:
        fields = cast("dict[str, Any]", json.loads(document))
        signature = fields.get("signature")
        return Anchor(
            str(fields["writer"]), int(fields["seq"]), bytes.fromhex(fields["hash"]),
            bool(fields["sealed"]), str(fields["signed_at"]), fields.get("key"),
            None if signature is None else bytes.fromhex(signature),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not an anchor: {error!r}") from None


class AnchorStore:
    """Anchors in an object store. Calls block, so make them in a thread."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        prefix: str = ANCHOR_PREFIX,
        retention_days: int | None = None,
    ) -> None:
        """``retention_days``: of Object Lock; ``None``: the bucket's own default holds."""
        self._objects = objects
        self._prefix = prefix
        self._retention = None if retention_days is None else timedelta(days=retention_days)

    @property
    def location(self) -> str:
        """For people: where the anchors are."""
        return f"{self._objects.location}/{self._prefix}"

    def put(self, anchor: Anchor) -> None:
        """Store it; one of this head that is there stays. Raises ``ObjectStoreError``."""
        until = None
        if self._retention is not None:
            until = datetime.fromisoformat(anchor.signed_at) + self._retention
        self._objects.put(self._prefix + anchor.name, anchor.document(), retain_until=until)

    def documents(self) -> list[bytes]:
        """All anchors' documents. Raises ``ObjectStoreError``."""
        return [
            self._objects.get(key)
            for key in self._objects.keys(self._prefix)
            if _NAME.fullmatch(key.removeprefix(self._prefix))
        ]
