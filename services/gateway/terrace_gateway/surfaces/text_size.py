"""By how much a model may read more than the bytes that it is sent.

A token stands for at least one byte of what the tokenizer sees, and that may be more than what was
sent: tokenizers normalise text, and chat templates render the arguments of tools anew.
"""

import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache

_ASCII = bytes(range(0x80))
_PLANES = 0x30000  # above it no character is decomposed or has another case
_HANGUL = range(0xAC00, 0xD7A4)
_SURROGATES = range(0xD800, 0xE000)
_MANY_QUOTES = 100_000
NUMBER_GROWTH = 24
"""Bytes by which a number with an exponent may grow: ``1e15`` is 1000000000000000.0 in Python, and
``1e20`` has all its digits in JavaScript."""


def normalised_growth(body: bytes) -> int:
    """Bytes that UTF-8 may gain when it is normalised (NFC, NFKC, case folding): U+FDFA has 3 and
    becomes 33.

    What a character can become is counted for each by itself: normalising a text takes time that is
    quadratic in its combining marks.
    """
    if body.isascii():
        return 0
    growth = _growth()
    found = Counter(body.translate(None, _ASCII).decode())
    return sum(growth.get(character, 0) * times for character, times in found.items())


def rendered_growth(text: str) -> int:
    """Tokens that a text may gain where it is JSON and a chat template renders it anew: blanks at
    each mark (``[1,1]`` is ``[1, 1]``, or a line each: its end and its indent are a token each),
    and numbers in full."""
    bare = text
    if text.count('"') <= _MANY_QUOTES:  # or what is between them counts as well
        bare = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    blanks = 2 * sum(map(bare.count, ",:[]{}"))
    exponents = bare.count("e") + bare.count("E") - bare.count("true") - bare.count("false")
    return blanks + NUMBER_GROWTH * exponents


@cache
def _growth() -> Mapping[str, int]:
    """Characters that may become longer, and by how much. Decomposing is the most that normalising
    does to a character; only Hangul is always put together again."""
    growth: dict[str, int] = {}
    for number in range(0x80, _PLANES):
        if number in _HANGUL or number in _SURROGATES:
            continue
        character = chr(number)
        folded = character.casefold()
        if folded == character and not unicodedata.decomposition(character):
            continue
        before = len(character.encode())
        forms = (unicodedata.normalize("NFKD", form) for form in (character, folded))
        most = max(len(form.encode()) for form in forms)
        if most > before:
            growth[character] = most - before
    return growth
