"""Patterns whose matches have a greatest length: a strict part of RE2's syntax, taken apart.

A guardrail on a stream holds back only what a rule may still match, so every rule needs a bound.
What is taken: literals, ``.``, classes, escapes, ``\\b``, groups ``( )`` and ``(?: )``,
alternation, and the repetitions ``?``, ``{n}`` and ``{n,m}``. Unbounded repetitions (``*``, ``+``,
``{n,}``), anchors, flags and back references are refused with the reason.
"""

import re
from dataclasses import dataclass, replace

MAX_SPAN = 1000
MAX_PATTERN = 2000
MAX_DEPTH = 16
MAX_SIZE = 20_000
"""Of the parts of a pattern with its repetitions written out."""

_REPEAT = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
_ESCAPE = re.compile(
    r"\\(?:[dDsSwW]|p[LNPSZ]|P[LNPSZ]|p\{[A-Za-z]{1,20}\}|P\{[A-Za-z]{1,20}\}"
    r"|x[0-9A-Fa-f]{2}|x\{[0-9A-Fa-f]{1,6}\}|[tnrfv]|[^A-Za-z0-9\s])"
)
_SCRIPTS = frozenset(
    {
        *("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S", "Z"),
        *("Latin", "Greek", "Cyrillic", "Arabic", "Hebrew", "Han"),
    }
)
_CLASS_ITEM = re.compile(r"\[:\^?[a-z]{1,10}:\]|" + _ESCAPE.pattern + r"|[^\]\\\[]")
_NO_RANGE = re.compile(r"\\[pP](?:\{\w+\}|\w)|\[:\^?\w+:\]|\\x\{\w+\}")
_POSIX = frozenset(
    {
        *("alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph"),
        *("lower", "print", "punct", "space", "upper", "word", "xdigit"),
    }
)


class PatternError(ValueError):
    """The pattern is not one that can be bounded; the message says why, for people."""


@dataclass(frozen=True, slots=True)
class BoundedPattern:
    """A pattern that RE2 takes."""

    text: str
    span: int
    """The most characters that a match has."""
    least: int
    """The fewest characters that a match has, at least 1."""
    prefixes: str
    """A pattern for every beginning of a match, the empty and the whole one too, and for some texts
    more: counts are left out, so that its automaton stays small. Assertions at its end are left
    out as well: what comes next is not known there."""


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    """As written, in the form that RE2 takes."""
    plain: str
    """The same without capturing and without upper counts."""
    low: int
    high: int
    prefixes: str
    size: int


_EMPTY = _Part("", "", 0, 0, "", 0)


def parse_bounded(text: str, *, max_span: int = MAX_SPAN) -> BoundedPattern:
    """Take a pattern apart. Raises ``PatternError``."""
    if not text or len(text) > MAX_PATTERN:
        raise PatternError(f"a pattern has 1 to {MAX_PATTERN} characters")
    parser = _Parser(text)
    part = parser.choice(depth=0)
    if parser.place < len(text):
        raise PatternError(f"')' at {parser.place + 1} closes nothing")
    if part.low < 1:
        raise PatternError("the pattern matches the empty text")
    if part.high > max_span:
        raise PatternError(f"a match could have {part.high} characters; at most {max_span}")
    return BoundedPattern(text, part.high, part.low, part.prefixes)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.place = 0

    def choice(self, *, depth: int) -> _Part:
        if depth > MAX_DEPTH:
            raise PatternError(f"groups are nested more than {MAX_DEPTH} deep")
        options = [self._sequence(depth)]
        while self._next() == "|":
            self.place += 1
            options.append(self._sequence(depth))
        if len(options) == 1:
            return options[0]
        return _Part(
            text="|".join(option.text for option in options),
            plain=_group("|".join(option.plain for option in options)),
            low=min(option.low for option in options),
            high=max(option.high for option in options),
            prefixes=_group("|".join(option.prefixes for option in options)),
            size=sum(option.size for option in options),
        )

    def _sequence(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(depth))
        joined = _EMPTY
        for part in reversed(parts):
            joined = _Part(
                text=part.text + joined.text,
                plain=part.plain + joined.plain,
                low=part.low + joined.low,
                high=part.high + joined.high,
                prefixes=_either(part, joined),
                size=part.size + joined.size,
            )
            if joined.size > MAX_SIZE:
                raise PatternError("the pattern is too large with its repetitions written out")
        return joined

    def _repeated(self, depth: int) -> _Part:
        part = self._atom(depth)
        sign = self._next()
        if sign in ("*", "+"):
            raise PatternError(
                f"'{sign}' at {self.place + 1} has no bound; write {{{0 if sign == '*' else 1},50}}"
            )
        low, high = 1, 1
        if sign == "?":
            low, high = 0, 1
            self.place += 1
        elif sign == "{":
            found = _REPEAT.match(self._text, self.place)
            if found is None:
                raise PatternError(f"'{{' at {self.place + 1}: write \\{{ for the character")
            if found[2] and found[3] is None:
                raise PatternError(f"'{found[0]}' at {self.place + 1} has no bound")
            low = int(found[1])
            high = int(found[3]) if found[3] else low
            if not (low <= high <= MAX_SPAN and high >= 1):
                raise PatternError(f"'{found[0]}' at {self.place + 1}: 0 to {MAX_SPAN}, in order")
            self.place = found.end()
        else:
            return part
        if part.high == 0:
            raise PatternError("an assertion cannot be repeated")
        lazy = "?" if self._next() == "?" else ""
        self.place += len(lazy)
        if self._next() in ("?", "*", "+", "{"):
            raise PatternError(f"two repetitions at {self.place + 1}: use a group")
        if high * part.high > MAX_SPAN:
            raise PatternError(f"a match could have more than {MAX_SPAN} characters")
        size = high * max(1, part.size)
        if size > MAX_SIZE:
            raise PatternError("the pattern is too large with its repetitions written out")
        many = f"{_group(part.plain)}*" if high > 1 else ""
        return _Part(
            text=f"{part.text}{{{low},{high}}}{lazy}",
            plain=many or f"{_group(part.plain)}?",
            low=low * part.low,
            high=high * part.high,
            prefixes=_group(many + part.prefixes),
            size=size,
        )

    def _atom(self, depth: int) -> _Part:
        sign = self._next()
        if sign == "(":
            return self._parenthesis(depth)
        if sign == "[":
            return self._class()
        if sign == "\\":
            return self._escape()
        if sign in ("*", "+", "?", "{"):
            raise PatternError(f"'{sign}' at {self.place + 1} repeats nothing")
        if sign in ("^", "$"):
            raise PatternError(f"'{sign}' at {self.place + 1}: a stream has no lines; use \\b")
        self.place += 1
        return _one("[^\\n]" if sign == "." else sign)

    def _parenthesis(self, depth: int) -> _Part:
        opening = "(?:" if self._text.startswith("(?:", self.place) else "("
        if opening == "(" and self._text.startswith("(?", self.place):
            raise PatternError(f"'(?' at {self.place + 1}: only (?: ) is taken")
        self.place += len(opening)
        inner = self.choice(depth=depth + 1)
        if self._next() != ")":
            raise PatternError("a group is not closed")
        self.place += 1
        return replace(inner, text=f"{opening}{inner.text})", plain=_group(inner.plain))

    def _class(self) -> _Part:
        start = self.place
        self.place += 1
        if self._next() == "^":
            self.place += 1
        first = self.place
        while self._next() != "]" or self.place == first:
            item = _CLASS_ITEM.match(self._text, self.place)
            if item is None:
                raise PatternError(f"the class at {start + 1} is not closed or has a stray sign")
            self._known(item[0])
            self.place = item.end()
        self.place += 1
        text = self._text[start : self.place]
        try:  # ranges out of order; what Python does not know is no end of a range
            re.compile(_NO_RANGE.sub("a", text))
        except re.error as error:
            raise PatternError(f"the class at {start + 1}: {error.msg}") from None
        return _one(text)

    def _escape(self) -> _Part:
        if self._text.startswith(("\\b", "\\B"), self.place):
            self.place += 2
            text = self._text[self.place - 2 : self.place]
            return _Part(text, text, 0, 0, "", 1)
        found = _ESCAPE.match(self._text, self.place)
        if found is None:
            raise PatternError(f"the escape at {self.place + 1} is not known here")
        self._known(found[0])
        self.place = found.end()
        return _one(found[0])

    @staticmethod
    def _known(item: str) -> None:
        if item.startswith(("\\p{", "\\P{")) and item[3:-1] not in _SCRIPTS:
            raise PatternError(f"{item} is not known; known: {', '.join(sorted(_SCRIPTS))}")
        if item.startswith("[:") and item.strip("[:^]") not in _POSIX:
            raise PatternError(f"{item} is not known; known: {', '.join(sorted(_POSIX))}")
        if item.startswith("\\x{") and int(item[3:-1], 16) > 0x10FFFF:
            raise PatternError(f"{item} is no character")

    def _next(self) -> str:
        return self._text[self.place : self.place + 1]


def _one(text: str) -> _Part:
    return _Part(text, text, 1, 1, f"(?:{text})?", 1)


def _group(text: str) -> str:
    return f"(?:{text})" if text else ""


def _either(first: _Part, rest: _Part) -> str:
    """Beginnings of ``first`` and then ``rest``."""
    if rest is _EMPTY:
        return first.prefixes
    return _group(f"{first.plain}{rest.prefixes}|{first.prefixes}")
