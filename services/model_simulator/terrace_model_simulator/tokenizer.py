"""The simulated model's tokeniser.

A token is a run of up to eight letters or digits with at most one space before it, or any other
single character. Every token holds at least one character, so **a text never has more tokens than
UTF-8 bytes**: a caller who bounds input by bytes is always right. Splitting loses nothing: the
tokens joined are the text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

_TOKEN = re.compile(r" ?[^\W_]{1,8}|.", re.DOTALL)

# What a chat costs above its texts. The JSON of a message (role and content keys, braces) or of a
# tool is always longer than this in bytes, so only the reply's share can pass the body's own size.
TOKENS_PER_MESSAGE = 3
TOKENS_PER_TOOL = 4
TOKENS_PER_REPLY = 3

# Whatever is in it. Its base64 is no text, so a caller bounds an image by this and not by bytes.
TOKENS_PER_IMAGE = 258


def split_tokens(text: str) -> list[str]:
    """The tokens of a text, in order; joined they are the text again."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    """Number of tokens; 0 for the empty text, never above its UTF-8 bytes."""
    return len(_TOKEN.findall(text))


def count_json_tokens(value: object) -> int:
    """Tokens of a JSON value: its keys and strings as texts, 1 for any other leaf.

    Never above the bytes of any JSON text that says the same.
    """
    if isinstance(value, str):
        return count_tokens(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return sum(count_tokens(key) + count_json_tokens(item) for key, item in members.items())
    if isinstance(value, Sequence):
        return sum(count_json_tokens(item) for item in cast("Sequence[object]", value))
    return 1
