"""Where in the document a problem is, and which keys would have been valid there."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from terrace_common.governance.references import reference_problems
from terrace_common.governance.sections import Problem, listed, problem_text
from terrace_common.yaml_lines import DocumentPath, LinedYaml

ALL_PROBLEMS = "governance_problems"
"""Type of a validation error that carries several problems."""


def lined_problems(
    root: type[BaseModel], document: LinedYaml, details: Sequence[ErrorDetails]
) -> list[tuple[int, str]]:
    """What pydantic and the checks found, each with its line, without repetitions and without what
    only follows: a list of which no item is valid is not empty for the one who wrote it."""
    found: dict[tuple[int, str], None] = {}
    for detail in details:
        if not _follows(detail, details):
            for path, what in _problems(root, detail):
                found[(document.line_of(path), what)] = None
    if not any(detail["type"] == ALL_PROBLEMS for detail in details):
        for path, what in reference_problems(document.data, root.model_fields):
            found[(document.line_of(path), f"{_where(path)}: {what}")] = None
    return list(found)


def _follows(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    here = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(here) and other["loc"][: len(here)] == here for other in details
    )


def _problems(root: type[BaseModel], detail: ErrorDetails) -> Iterator[Problem]:
    context = detail.get("ctx", {})
    if detail["type"] == ALL_PROBLEMS:
        problems: Sequence[Problem] = context["problems"]
        for path, what in problems:
            yield path, f"{_where(path)}: {what}"
        return
    path: DocumentPath = context.get("path", detail["loc"])
    places = tuple(_places(root, path))
    if detail["type"] == "extra_forbidden":
        valid = listed(_keys(root, path[:-1]))
        yield path, f"unknown key {path[-1]!r}; valid keys here: {valid}"
    elif detail["type"] == "missing":
        yield path, f"{_where(places)} is required"
    else:
        yield path, f"{_where(places)}: {problem_text(detail)}"


def _where(path: DocumentPath) -> str:
    return ".".join(str(part) for part in path) or "the file"


def _places(root: type[BaseModel], path: DocumentPath) -> Iterator[str | int]:
    """``path`` without what pydantic adds to it: tags and names of a union's members."""
    here: list[object] = [root]
    for part in path:
        inner = list(_enter(here, part))
        if inner:
            yield part
            here = inner
        else:
            here = [kind for kind in here if _tagged(kind, part)] or here


def _keys(root: type[BaseModel], path: DocumentPath) -> list[str]:
    here: list[object] = [root]
    for part in path:
        inner = list(_enter(here, part))
        here = inner or [kind for kind in here if _tagged(kind, part)] or here
    return [
        field.alias or name
        for kind in here
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    ]


def _enter(kinds: Sequence[object], part: str | int) -> Iterator[object]:
    """The types of what ``part`` leads to."""
    for kind in kinds:
        if isinstance(part, int):
            if get_origin(kind) in {tuple, list}:
                yield from _members(get_args(kind)[0])
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                if part in (name, field.alias):
                    yield from _members(field.annotation)
        elif get_origin(kind) is dict:
            yield from _members(get_args(kind)[1])


def _members(annotation: Any) -> Iterator[object]:
    """The types that an annotation stands for, without ``Annotated`` and unions."""
    if hasattr(annotation, "__metadata__"):
        yield from _members(annotation.__origin__)
    elif get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _tagged(kind: object, part: str | int) -> bool:
    """Whether a union's member goes by ``part``: its class, or the literal of its ``kind``."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return False
    if kind.__name__ == part:
        return True
    return any(
        get_origin(field.annotation) is Literal and part in get_args(field.annotation)
        for field in kind.model_fields.values()
    )
