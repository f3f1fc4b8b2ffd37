"""Finding rules in a text that arrives in parts, with the same result as in the whole text.

Each rule's matches have a greatest length. What can still become a match is held back; everything
before it is decided and passes. A match at a place is looked for only once no text to come can
change it, so the cut of the text into parts changes nothing. Where what is held back cannot wait,
a scan pauses: it shows it, and goes on to look for a match that reaches into what comes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from terrace_common.bounded_pattern import parse_bounded
from terrace_gateway.linear_search import Pattern, PatternSet, compile_pattern, decode

MAX_CANDIDATES = 10_000
"""Of one asking, in all of its texts, or of one part of a stream: what looked like a match. Each is
checked in Python, so there is a limit."""


class TooManyCandidatesError(Exception):
    """The text was made so that checking it takes too long."""


@dataclass(slots=True)
class Candidates:
    """How many were checked, for scans that share a limit."""

    checked: int = 0


MAX_TAIL = 16_384
"""Bytes."""
BYTES_OF_A_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """A thing to look for. With a group in ``pattern``, the group is what is masked."""

    name: str
    pattern: str
    """As ``terrace_common.bounded_pattern`` takes it."""
    check: Callable[[str], bool] | None = None
    """What a match must pass beside: check digits, randomness. Given what would be masked."""
    ignore_case: bool = False
    not_after: bytes = b""
    """Characters (ASCII) that a match must not follow."""
    tail: str | None = None
    """A class of characters: those that follow a match are masked with it, at most ``MAX_TAIL``
    bytes. They are not held back. ASCII."""


class RuleSet:
    """Compiled rules, to be shared by all texts. Raises ``ValueError`` for what RE2 refuses."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        bounded = [parse_bounded(rule.pattern) for rule in rules]
        self.span = max((pattern.span for pattern in bounded), default=0)
        sources = [_flagged(rule, rule.pattern) for rule in rules]
        self.patterns = [compile_pattern(source) for source in sources]
        self.set = PatternSet(sources)
        beginnings = [
            _flagged(rule, pattern.prefixes) for rule, pattern in zip(rules, bounded, strict=True)
        ]
        self.unfinished = compile_pattern(f"(?:{'|'.join(beginnings)})\\z") if rules else None
        self.tails = [
            compile_pattern(f"[^{rule.tail[1:-1]}]") if rule.tail else None for rule in rules
        ]
        self.labels = [f"[masked:{rule.name}]".encode() for rule in rules]


@dataclass(slots=True)
class Scan:
    """One text on its way. ``found`` has the names of the rules that matched so far."""

    rules: RuleSet
    found: dict[str, None] = field(default_factory=dict[str, None])
    candidates: Candidates = field(default_factory=Candidates)
    source: Callable[[int, bytes], bytes] | None = None
    """What stands in the source for what passes, given its place in the whole; ``None``: that."""
    late: bool = False
    """Whether a match was found of which something had been shown in a pause."""
    _text: bytes = b""
    """One byte of context, what was shown in a pause and may begin a match, and what is held."""
    _start: int = 0
    """Where in ``_text`` a match may begin: ``_context``, or before it after a pause."""
    _context: int = 0
    _base: int = 0
    """Place of ``_text`` in the whole."""
    _next: dict[int, int] = field(default_factory=dict[int, int])
    """Per rule, where in the whole its next match may begin."""
    _spans: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Beginning, rule and end in the whole of what is to be masked."""
    _masked_to: int = 0
    _tails: list[tuple[Pattern, int]] = field(default_factory=list[tuple[Pattern, int]])
    """The tails that run over the end of the text so far, and where each ends at the latest."""
    _seen: int = 0
    """The end of the text so far in the whole."""

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return len(self._text) - self._context

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """More text, whole characters; what is decided now, masked. Nothing is held at ``end``.

        Raises ``TooManyCandidatesError``.
        """
        self._text += data
        hold = len(self._text) if end else self._decided()
        return self._decide(hold, keep=hold)

    def pause(self) -> bytes:
        """What is held, masked as if the text ended here. It may go on all the same.

        Raises ``TooManyCandidatesError``.
        """
        known = dict(self._next)
        shown = self._decide(len(self._text), keep=self._start)
        self._next = known
        return shown

    def rest(self, more: bytes = b"") -> bytes:
        """What has not passed and what comes after it, as it is, for one who goes on without this
        scan."""
        self._text += more
        return self._sourced(max(self._context, self._masked_to - self._base), len(self._text))

    def _decided(self) -> int:
        """Up to where no text to come changes a match."""
        text, unfinished = self._text, self.rules.unfinished
        if unfinished is None or self._start >= len(text):
            return len(text)
        beginning = unfinished.search(text, self._start)
        return self._bounded(len(text) if beginning is None else beginning.span()[0])

    def _decide(self, hold: int, *, keep: int) -> bytes:
        """Look for matches before ``hold``, and pass it; from ``keep`` on others may begin."""
        if hold > self._start:
            for index in self.rules.set.matching(self._text):
                self._search(index, hold)
        return self._pass(hold, keep)

    def _bounded(self, hold: int) -> int:
        """No rule spans more than its bound: what begins before cannot grow any more."""
        text = self._text
        hold = max(hold, len(text) - BYTES_OF_A_CHARACTER * self.rules.span - 1)
        while hold < len(text) and text[hold] & 0xC0 == 0x80:  # inside of a character
            hold += 1
        return hold

    def _search(self, index: int, hold: int) -> None:
        rule, pattern = self.rules.rules[index], self.rules.patterns[index]
        place = max(self._start, self._next.get(index, 0) - self._base)
        while place < hold:
            match = pattern.search(self._text, place)
            if match is None or match.span()[0] >= hold:
                break
            start, stop = match.span()
            if start > 0 and self._text[start - 1] in rule.not_after:
                place = start + 1
                continue
            grouped = bool(pattern.groups) and match.span(1)[0] >= 0
            masked = match.span(1) if grouped else (start, stop)
            if self._holds(rule, masked):
                span = (self._base + masked[0], index, self._base + masked[1])
                if masked[0] < self._context and (
                    stop > self._context or span[2] > self._masked_to
                ):
                    self.late = True
                self._spans.append(span)
                self.found[rule.name] = None
                place = stop
            else:
                place = start + 1
        self._next[index] = self._base + max(place, hold)

    def _holds(self, rule: Rule, masked: tuple[int, int]) -> bool:
        self.candidates.checked += 1
        if self.candidates.checked > MAX_CANDIDATES:
            raise TooManyCandidatesError
        return rule.check is None or rule.check(decode(self._text[masked[0] : masked[1]]))

    def _pass(self, hold: int, keep: int) -> bytes:
        hold = max(hold, self._context)
        out = bytearray()
        base = self._base
        running, self._tails = self._tails, []
        for outside, limit in running:
            self._follow(outside, limit, max(base, self._seen))
        self._seen = base + len(self._text)
        place = max(self._context, min(self._masked_to - base, hold))
        self._spans.sort()
        done = 0
        for start, index, stop in self._spans:
            if start >= base + hold:
                break
            done += 1
            if start >= self._masked_to:
                out += self._sourced(place, start - base) + self.rules.labels[index]
            self._masked_to = max(self._masked_to, stop)
            if (outside := self.rules.tails[index]) is not None:
                self._follow(outside, stop + MAX_TAIL, stop)
            place = max(place, min(self._masked_to - base, hold))
        del self._spans[:done]
        out += self._sourced(place, hold)
        cut = max(0, keep - 1)
        self._text, self._base = self._text[cut:], base + cut
        self._context, self._start = hold - cut, keep - cut
        return bytes(out)

    def _sourced(self, start: int, stop: int) -> bytes:
        said = self._text[start:stop]
        return said if self.source is None else self.source(self._base + start, said)

    def _follow(self, outside: Pattern, limit: int, start: int) -> None:
        """Mask from ``start`` to the first character of ``outside``, or to ``limit``."""
        found = outside.search(self._text, start - self._base)
        reached = self._base + (len(self._text) if found is None else found.span()[0])
        self._masked_to = max(self._masked_to, min(reached, limit))
        if found is None and reached < limit:
            self._tails.append((outside, limit))


def _flagged(rule: Rule, pattern: str) -> str:
    return f"(?i:{pattern})" if rule.ignore_case else f"(?:{pattern})"
