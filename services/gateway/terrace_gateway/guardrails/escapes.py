"""A JSON source read as what it says: escapes are taken off for a scan, and put back around it.

What is masked is replaced in the source, and what is not keeps the escapes that it came with, so
that JSON stays JSON, also where it arrives in parts and an escape is cut.
"""

import re
from collections import deque

from terrace_gateway.linear_search import decode, encode

_ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4})'
)
_CUT = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?"
    r"|u[0-9a-fA-F]{0,3})?\Z"
)
"""An escape, or the first of a pair, that may go on."""
_SIGNS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LIKE_JSON = re.compile(r'\s*["{\[]')


MAX_DEPTH = 2
"""JSON, and JSON in a string of JSON."""


def like_json(text: str) -> bool:
    """Whether a text begins as JSON that has strings does."""
    return _LIKE_JSON.match(text) is not None


def depth_of(text: str) -> int:
    """How often escapes may be taken off a whole text, at most ``MAX_DEPTH`` times."""
    if "\\" not in text:
        return 0
    return 2 if "\\\\" in text or "\\u005" in text else 1


class Escapes:
    """Those of one source in parts, taken off ``depth`` times."""

    def __init__(self, depth: int = 1) -> None:
        self._inner = Escapes(depth - 1) if depth > 1 else None
        self._cut = ""
        self._length = 0
        self._known: deque[tuple[int, int, bytes]] = deque()
        """Beginning and end in bytes of what stands for an escape, and the escape; of what has not
        been put back yet."""
        self._longer = 0
        """How many bytes longer the source is up to the first of them."""

    @property
    def cut(self) -> bool:
        """Whether the source so far ends in an escape."""
        return bool(self._cut) or (self._inner is not None and self._inner.cut)

    def feed(self, source: str) -> bytes:
        """What more of the source says."""
        said = self._read(source)
        return said if self._inner is None else self._inner.feed(decode(said))

    def end(self) -> bytes:
        """An escape that was cut, as it stands."""
        cut, self._cut = self._cut, ""
        said = self._said(cut)
        return said if self._inner is None else self._inner.feed(decode(said)) + self._inner.end()

    def source(self, place: int, said: bytes) -> bytes:
        """The source of ``said``, which began at ``place``. To be asked in order; what is left out
        is never asked for."""
        return self._put_back(place, said)[1]

    def _put_back(self, place: int, said: bytes) -> tuple[int, bytes]:
        """Also where the source begins."""
        if self._inner is not None:
            place, said = self._inner._put_back(place, said)
        known = self._known
        while known and known[0][0] < place:
            self._pass()
        begin = place + self._longer
        parts: list[bytes] = []
        at = 0
        while known and known[0][0] < place + len(said):
            start, stop, escape = self._pass()
            parts += (said[at : start - place], escape)
            at = stop - place
        return begin, b"".join([*parts, said[at:]]) if parts else said

    def _pass(self) -> tuple[int, int, bytes]:
        start, stop, escape = first = self._known.popleft()
        self._longer += len(escape) - (stop - start)
        return first

    def _read(self, source: str) -> bytes:
        source = self._cut + source
        self._cut = ""
        if "\\" not in source:
            return self._said(source)
        place = 0
        said: list[bytes] = []
        for escape in _ESCAPE.finditer(source):
            if self._is_first_half(escape, source):
                break
            said.append(self._said(source[place : escape.start()]))
            begin = self._length
            said.append(self._said(_meaning(escape[0])))
            self._known.append((begin, self._length, escape[0].encode()))
            place = escape.end()
        return b"".join([*said, self._said(self._whole(source[place:]))])

    def _said(self, text: str) -> bytes:
        data = encode(text)
        self._length += len(data)
        return data

    def _whole(self, source: str) -> str:
        cut = _CUT.search(source)
        if cut is None:
            return source
        self._cut = cut[0]
        return source[: cut.start()]

    def _is_first_half(self, escape: re.Match[str], source: str) -> bool:
        """Whether its second may come with the next part."""
        return len(escape[0]) == 6 and _CUT.fullmatch(source, escape.start()) is not None


def unescaped(text: str, depth: int) -> str:
    """What a whole text says."""
    escapes = Escapes(depth)
    return decode(escapes.feed(text) + escapes.end())


def _meaning(escape: str) -> str:
    if escape[1] != "u":
        return _SIGNS.get(escape[1], escape[1])
    first = int(escape[2:6], 16)
    if len(escape) == 6:
        return chr(first)
    return chr(0x10000 + ((first - 0xD800) << 10) + int(escape[8:], 16) - 0xDC00)
