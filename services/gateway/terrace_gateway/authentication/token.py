"""A token that was checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from terrace_common.governance.authentication import Issuer


@dataclass(frozen=True, slots=True)
class Token:
    """What a token of an identity provider says. It is kept in memory for as long as the call that
    it came with, and nowhere else."""

    issuer: Issuer
    """As it was declared when the token was checked."""
    algorithm: str
    """Of its signature."""
    subject: str = field(repr=False)
    claims: Mapping[str, object] = field(repr=False)
    expires_at: datetime
    """Its ``exp`` and the leeway of the issuer."""
