"""Guardrails that are computed here, by rules."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from terrace_common.governance.guardrails import Action, Phase
from terrace_gateway.calls.ports import Verdict
from terrace_gateway.guardrails.linear_search import decode, encode
from terrace_gateway.guardrails.port import GuardrailFailedError, Meter
from terrace_gateway.guardrails.scan import RuleSet, Scan, TooManyCandidatesError

SLICE_BYTES = 32 * 1024
"""Scanned at once; other calls run in between, and time limits take hold."""
FREE_BYTES = 8 * 1024
"""Texts of one asking up to this size are scanned without letting others run."""


@dataclass(frozen=True, slots=True)
class Named:
    """What every guardrail of the spec has."""

    name: str
    action: Action
    phases: frozenset[Phase]
    fails_open: bool
    timeout_seconds: float


class RuleGuardrail:
    """Rules on the text as it is."""

    local = True

    def __init__(self, named: Named, rules: RuleSet) -> None:
        self.name = named.name
        self.action: Action = named.action
        self.phases = named.phases
        self.fails_open = named.fails_open
        self.timeout_seconds = named.timeout_seconds
        self._rules = rules

    async def before(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """As ``after``: the rules are the same."""
        return await self.after(texts, meter)

    async def after(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """The verdict; ``texts`` of it are the masked ones, whatever the action."""
        del meter  # it costs nothing
        found: dict[str, None] = {}
        masked = await masked_texts(self._rules, texts, found)
        return Verdict(
            action=self.action if found else "allow",
            guardrail=self.name,
            reasons=tuple(found),
            texts=masked if found else None,
        )

    def stream(self) -> "RuleFilter":
        """A filter that masks, or passes what is to be flagged only."""
        return RuleFilter(self._rules, hold=self.action != "flag")


async def masked_texts(
    rules: RuleSet, texts: Sequence[str], found: dict[str, None]
) -> tuple[str, ...]:
    """Each text masked; the names of the rules that matched are added to ``found``.

    Raises ``GuardrailFailedError``.
    """
    masked: list[str] = []
    worked = 0
    for text in texts:
        data = encode(text)
        joined = await scan_slices(rules, data, found)
        masked.append(text if joined == data else decode(joined))
        worked += len(data) + 64
        if worked > FREE_BYTES:
            worked = 0
            await asyncio.sleep(0)
    return tuple(masked)


async def scan_slices(rules: RuleSet, data: bytes, found: dict[str, None]) -> bytes:
    """One text masked, slice by slice. Raises ``GuardrailFailedError``."""
    scan = Scan(rules, found)
    parts: list[bytes] = []
    place = 0
    while True:
        end = min(place + SLICE_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # inside of a character
            end += 1
        parts.append(_scanned(scan, data[place:end], end=end == len(data)))
        if end == len(data):
            return b"".join(parts)
        place = end
        await asyncio.sleep(0)


class RuleFilter:
    """A stream's text, part by part, masked; what may still become a match is held back."""

    def __init__(self, rules: RuleSet, *, hold: bool) -> None:
        self._rules = rules
        self._hold = hold
        self._found: dict[str, None] = {}
        self._scan = Scan(rules, self._found)

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the rules that matched so far."""
        return tuple(self._found)

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return self._scan.held

    def feed(self, text: str) -> str:
        """What is decided. Raises ``GuardrailFailedError``."""
        shown = _scanned(self._scan, encode(text), end=False)
        return decode(shown) if self._hold else text

    def flush(self) -> str:
        """The rest of the part. Raises ``GuardrailFailedError``."""
        shown = _scanned(self._scan, b"", end=True)
        self._scan = Scan(self._rules, self._found)
        return decode(shown) if self._hold else ""

    def rest(self) -> str:
        """What was held when the guardrail failed."""
        return decode(self._scan.rest()) if self._hold else ""


def _scanned(scan: Scan, data: bytes, *, end: bool) -> bytes:
    try:
        return scan.feed(data, end=end)
    except TooManyCandidatesError:
        raise GuardrailFailedError("the text has too many places that look like a match") from None
