"""Whole numbers in headers that others write."""

_SURE_DIGITS = 9


def whole_number(text: str) -> int | None:
    """A number of at most nine digits; ``None`` for anything else."""
    fits = text.isascii() and text.isdigit() and len(text) <= _SURE_DIGITS
    return int(text) if fits else None


def whole_seconds(text: str, *, most: int) -> int | None:
    """Seconds, ``most`` for anything above; ``None`` for what is no whole number (a date, say)."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return most if len(digits) > _SURE_DIGITS else min(int(digits or "0"), most)
