"""Guardrails that are computed here, by rules."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from terrace_common.governance.guardrails import Action, Phase
from terrace_gateway.calls.ports import Verdict
from terrace_gateway.guardrails.escapes import MAX_DEPTH, Escapes, depth_of, like_json
from terrace_gateway.guardrails.port import GuardrailFailedError, Meter
from terrace_gateway.guardrails.scan import Candidates, RuleSet, Scan, TooManyCandidatesError
from terrace_gateway.linear_search import decode, encode

TURN_SECONDS = 0.005
"""How long an asking holds the event loop, about; then other calls run, and time limits hold."""
MIN_SLICE, FIRST_SLICE, MAX_SLICE = 512, 2048, 32 * 1024
"""Characters that are scanned at once: fewer where each takes long to check."""


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

    def stream(self) -> "ReadingFilter":
        """A filter that masks, or passes what is to be flagged only."""
        return ReadingFilter(self._rules, hold=self.action != "flag")


async def masked_texts(
    rules: RuleSet, texts: Sequence[str], found: dict[str, None]
) -> tuple[str, ...]:
    """Each text masked; the names of the rules that matched are added to ``found``.

    Raises ``GuardrailFailedError``.
    """
    asking = AskingTurns()
    return tuple([await _masked(rules, text, found, asking) for text in texts])


async def _masked(rules: RuleSet, text: str, found: dict[str, None], asking: "AskingTurns") -> str:
    depths = range(depth_of(text) + 1)
    # A mask must not tear an escape of what is JSON, so that is read as what it says first.
    for depth in reversed(depths) if like_json(text) else depths:
        text = await scan_slices(rules, text, found, asking, depth)
    return text


class AskingTurns:
    """The work of one asking: how much is done at once, and how much at all."""

    def __init__(self) -> None:
        self.candidates = [Candidates() for _ in range(MAX_DEPTH + 1)]
        """Of each reading: what is no match is looked at in all of them."""
        self.slice = FIRST_SLICE
        self._since = self._last = perf_counter()

    async def share(self) -> None:
        """After each slice: let others run once the turn is over."""
        now = perf_counter()
        took, self._last = now - self._last, now
        if took > TURN_SECONDS:
            self.slice = max(MIN_SLICE, self.slice // 2)
        elif took < TURN_SECONDS / 4:
            self.slice = min(MAX_SLICE, self.slice * 2)
        if now - self._since > TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = self._last = perf_counter()


async def scan_slices(
    rules: RuleSet,
    text: str,
    found: dict[str, None],
    asking: AskingTurns,
    depth: int = 0,
) -> str:
    """One text masked, slice by slice, read with its escapes taken off ``depth`` times.

    Raises ``GuardrailFailedError``.
    """
    escapes = Escapes(depth) if depth else None
    scan = Scan(rules, found, asking.candidates[depth], escapes.source if escapes else None)
    parts: list[bytes] = []
    place = 0
    while True:
        piece = text[place : place + asking.slice]
        place += len(piece)
        end = place == len(text)
        data = encode(piece) if escapes is None else escapes.feed(piece)
        if end and escapes is not None:
            data += escapes.end()
        parts.append(_scanned(scan, data, end=end))
        await asking.share()
        if end:
            return decode(b"".join(parts))


class RuleFilter:
    """One part of a stream, piece by piece, masked; what may still become a match is held back.

    With ``escapes`` it is read without them.
    """

    def __init__(self, rules: RuleSet, *, hold: bool, escapes: Escapes | None = None) -> None:
        self._hold = hold
        self._found: dict[str, None] = {}
        self._escapes = escapes
        self._scan = Scan(rules, self._found, source=escapes.source if escapes else None)
        self._torn = False
        """Half of an escape was shown."""
        self._unread = False
        """And the other half came later."""

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the rules that matched so far."""
        return tuple(self._found)

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return self._scan.held

    @property
    def late(self) -> bool:
        """Whether something of a match was shown before ``feed`` went on after ``flush``."""
        return self._scan.late or self._unread

    def feed(self, text: str) -> str:
        """What is decided. Raises ``GuardrailFailedError``."""
        self._unread = self._unread or (self._torn and bool(text))
        data = encode(text) if self._escapes is None else self._escapes.feed(text)
        shown = _scanned(self._scan, data, end=False)
        return decode(shown) if self._hold else text

    def follow(self, text: str) -> None:
        """What was shown before the part is read: no match begins in it."""
        data = encode(text) if self._escapes is None else self._escapes.feed(text)
        _scanned(self._scan, data, end=True)

    def flush(self) -> str:
        """What is held back. Raises ``GuardrailFailedError``."""
        shown = b""
        if self._escapes is not None and self._escapes.cut:
            self._torn = True
            shown = _scanned(self._scan, self._escapes.end(), end=False)
        try:
            shown += self._scan.pause()
        except TooManyCandidatesError:
            raise _too_many() from None
        return decode(shown) if self._hold else ""

    def rest(self) -> str:
        """What was held when the guardrail failed."""
        if not self._hold:
            return ""
        return decode(self._scan.rest(self._escapes.end() if self._escapes else b""))


class ReadingFilter:
    """One part of a stream as it stands, and as what it says without escapes.

    What begins as JSON is read without them from its beginning, anything else once it has one: a
    match that began in what was shown before is ``late`` then.
    """

    def __init__(self, rules: RuleSet, *, hold: bool) -> None:
        self._rules = rules
        self._hold = hold
        self._begun = False
        self._plain = True
        """Whether it is read only as it stands so far."""
        self._before = ""
        """The end of what was shown of it then."""
        self._cut = False
        """Whether more was shown before it."""
        self._readings = [RuleFilter(rules, hold=hold)]

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the rules that matched so far."""
        if self._plain:
            return self._readings[0].found
        return tuple(dict.fromkeys(name for one in self._readings for name in one.found))

    @property
    def late(self) -> bool:
        """Whether something of a match was shown before ``feed`` went on after ``flush``."""
        return any(one.late for one in self._readings)

    def feed(self, text: str) -> str:
        """What is decided. Raises ``GuardrailFailedError``."""
        if not self._begun and text and not text.isspace():
            self._begun = True
            if like_json(text):
                self._plain = False
                self._readings[:0] = reversed(self._unescaped())
        text = _fed(self._readings, text)
        return self._read_on(text, end=False) if self._plain else text

    def flush(self) -> str:
        """What is held back. Raises ``GuardrailFailedError``."""
        text = _fed(self._readings, "", end=True)
        return self._read_on(text, end=True) if self._plain else text

    def rest(self) -> str:
        """What was held when the guardrail failed."""
        return "".join(one.rest() for one in reversed(self._readings))

    def _read_on(self, text: str, *, end: bool) -> str:
        """What was read as it stands, also without escapes from the first one on."""
        if "\\" not in text:
            before = self._before + text
            self._before = before[-self._rules.span - 1 :]
            self._cut = self._cut or len(before) > len(self._before)
            return text
        self._plain = False
        more = self._unescaped()
        known = self._before
        if self._cut:  # not from the middle of a word: that it is a whole one would be a mistake
            known = known.partition(" ")[2]
        for one in more:
            if known:
                one.feed(known)
                one.flush()
            else:
                one.follow(self._before)
        self._readings += more
        return _fed(more, text, end=end)

    def _unescaped(self) -> list[RuleFilter]:
        return [
            RuleFilter(self._rules, hold=self._hold, escapes=Escapes(depth))
            for depth in range(1, MAX_DEPTH + 1)
        ]


def _fed(readings: Sequence[RuleFilter], text: str, *, end: bool = False) -> str:
    """What passes all of them, one after the other."""
    for one in readings:
        shown = one.feed(text) if text else ""
        text = shown + one.flush() if end else shown
    return text


def _scanned(scan: Scan, data: bytes, *, end: bool) -> bytes:
    try:
        return scan.feed(data, end=end)
    except TooManyCandidatesError:
        raise _too_many() from None


def _too_many() -> GuardrailFailedError:
    return GuardrailFailedError("the text has too many places that look like a match")
