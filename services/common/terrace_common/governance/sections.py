"""What the sections of the governance spec share: patterns of names, and errors with a place."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict
from pydantic_core import ErrorDetails, PydanticCustomError

from terrace_common.yaml_lines import DocumentPath

Problem = tuple[DocumentPath, str]
"""A place of the document and what is wrong there, with what would be right."""

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
UPSTREAM_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,255}$"
URL_PATTERN = r"^https?://[^\s@]+$"  # no user:password@ in a file that is not secret
ENVIRONMENT_PATTERN = r"^[A-Z][A-Z0-9_]*$"


REGION_PATTERN = r"^[a-z]{2}(-[a-z]+)+-\d$"
RESIDENCY_PATTERN = r"^[a-z]{2}(-[a-z]+)*(-\d|-\*)$"
PATTERNS_IN_WORDS = {
    NAME_PATTERN: "lower-case letters, digits, '.', '_' and '-', beginning and ending with a letter"
    " or digit, at most 63",
    UPSTREAM_PATTERN: "letters, digits and '._:/@-', beginning with a letter or digit, at most 256",
    URL_PATTERN: "must be http(s)://host[:port][/path], without a user or password",
    ENVIRONMENT_PATTERN: "upper-case letters, digits and '_', beginning with a letter",
    REGION_PATTERN: "must be an AWS region such as us-east-1",
    RESIDENCY_PATTERN: "must be an AWS region such as eu-west-1, or the beginning of several"
    " and '-*', such as eu-*",
}


_INSIDE = re.compile(
    r"http://(localhost|127\.\d+\.\d+\.\d+|\[::1\]|[a-z0-9.-]+\.svc(\.cluster\.local)?)(:\d+)?(/.*)?"
)


class Section(BaseModel):
    """A part of the spec: unknown keys are errors, values are not coerced, nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def stays_inside(url: str) -> bool:
    """Whether a plain ``http`` URL leads to this machine or to a service of the cluster."""
    return _INSIDE.fullmatch(url) is not None


def is_callable(url: str) -> bool:
    """Whether a URL of ``URL_PATTERN`` names a host and a port that there can be, in ASCII."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url.isascii()
    except ValueError:
        return False


def problem_text(detail: ErrorDetails) -> str:
    """What is wrong with a value, for people; one of this module's patterns is put in words."""
    return PATTERNS_IN_WORDS.get(detail.get("ctx", {}).get("pattern", ""), detail["msg"])


def at(path: DocumentPath, message: str) -> PydanticCustomError:
    """A problem at a place of the document, to be raised inside a validator."""
    return PydanticCustomError("governance", "{message}", {"message": message, "path": path})


def listed(names: Iterable[str]) -> str:
    """Names for an error text."""
    return ", ".join(sorted(names))


def duplicates(section: str, noun: str, names: Iterable[str]) -> Iterator[Problem]:
    """A problem for each name of a list that was there before."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield (section, index, "name"), f"{noun} {name!r} is given twice"
        seen.add(name)


def undeclared(
    path: DocumentPath, noun: str, names: Iterable[str], declared: Iterable[str]
) -> Iterator[Problem]:
    """A problem for each of ``names`` that is not among ``declared``. ``path`` is of the list."""
    known = set(declared)
    for index, name in enumerate(names):
        if name not in known:
            yield (*path, index), missing(noun, name, known)


def missing(noun: str, name: str, declared: Iterable[str]) -> str:
    """The text for a reference that leads nowhere; a close name is offered."""
    known = sorted(declared)
    if close := get_close_matches(name, known, n=1):
        return f"{noun} {name!r} is not declared; did you mean {close[0]!r}?"
    if not known:
        return f"{noun} {name!r} is not declared; no {noun} is"
    return f"{noun} {name!r} is not declared; declared: {listed(known)}"
