"""Governance texts, compiled once: a plan, its apply and the reload after it are of one text."""

import hashlib

from terrace_common.governance import load_governance
from terrace_common.governance.compile import CompiledGovernance, compile_governance

SOURCE = "governance.yaml"
KEPT = 4


class Texts:
    """The last few texts, compiled. May be used from several threads."""

    def __init__(self) -> None:
        self._compiled: dict[str, CompiledGovernance] = {}

    def compile(self, text: str) -> CompiledGovernance:
        """The text, ready for use. Takes seconds for 10,000 declared keys, unless it is known.

        Raises ``GovernanceError``.
        """
        digest = digest_of(text)
        known = self._compiled.get(digest)
        if known is None:
            known = compile_governance(load_governance(text, SOURCE))
            kept = list(self._compiled.items())[-(KEPT - 1) :]
            self._compiled = {**dict(kept), digest: known}
        return known


def digest_of(text: str) -> str:
    """SHA-256 of a governance text, hex."""
    return hashlib.sha256(text.encode()).hexdigest()
