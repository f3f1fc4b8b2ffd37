"""Credentials that the guard itself shows, read where they are mounted: a rotation is seen."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from terrace_gateway.upstream.port import NotSentError

REREAD_SECONDS = 1.0
_PRINTABLE = re.compile(r"[\x21-\x7e]{1,4096}")


class Credentials:
    """One file per variable's name below ``folder``; else the variable itself.

    ``repr`` shows none.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = os.environ if environment is None else environment
        self._known: dict[str, tuple[float, str]] = {}

    def __repr__(self) -> str:
        return "Credentials(...)"

    def of(self, variable: str) -> str:
        """The credential, at most a second old. Raises ``NotSentError`` if there is none that can
        stand in a header."""
        now = time.monotonic()
        known = self._known.get(variable)
        if known is not None and now - known[0] < REREAD_SECONDS:
            return known[1]
        try:
            text = (self._folder / variable).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            text = self._environment.get(variable, "").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotSentError(f"no credential ({type(error).__name__})") from None
        if not _PRINTABLE.fullmatch(text):
            raise NotSentError("no credential that can stand in a header")
        self._known[variable] = (now, text)
        return text

    def find(self, variable: str) -> str | None:
        """The credential as ``of`` gives it; ``None`` if there is none."""
        try:
            return self.of(variable)
        except NotSentError:
            return None
