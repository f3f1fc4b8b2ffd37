"""Texts of others among lines that people read."""


def one_line(text: str) -> str:
    """``text`` as one line that no terminal obeys: what is no printable character (a newline, an
    escape sequence, what turns the direction of writing) as its escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
