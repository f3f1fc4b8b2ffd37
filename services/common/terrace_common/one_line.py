"""Texts of others among lines that people read."""

import unicodedata


def one_line(text: str) -> str:
    """``text`` as one line that no terminal obeys: what is neither printable nor a blank (a
    newline, an escape sequence, what turns the direction of writing) as its escape."""
    if text.isprintable():
        return text
    return "".join(sign if _is_shown(sign) else repr(sign)[1:-1] for sign in text)


def _is_shown(sign: str) -> bool:
    return sign.isprintable() or unicodedata.category(sign) == "Zs"
