"""YAML read into plain data together with the line of every key and value."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import yaml

DocumentPath = tuple[str | int, ...]
MAX_VALUES = 500_000
"""Of one document, counted after aliases are filled in: a few lines of aliases can stand for more
than any memory holds."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class YamlError(Exception):
    """The text is not YAML that we accept; ``line`` is 1-based."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True)
class LinedYaml:
    """Plain data (dict, list, scalar) and the 1-based line of each path in it."""

    data: object
    lines: dict[DocumentPath, int]

    def line_of(self, path: DocumentPath) -> int:
        """Line of the deepest part of ``path`` that exists in the document.

        Parts that are not in the document (a missing key, a union's tag) are skipped.
        """
        here: DocumentPath = ()
        for part in path:
            if (*here, part) in self.lines:
                here = (*here, part)
        return self.lines[here]


class DecimalText(float):
    """A number with a point, which also remembers how it was written: money is read from that."""

    text: str

    def __new__(cls, value: float, text: str) -> "DecimalText":
        """``text`` is the scalar of the document."""
        made = super().__new__(cls, value)
        made.text = text
        return made


class _Constructor(yaml.constructor.SafeConstructor):
    pass


def read_lined_yaml(text: str) -> LinedYaml:
    """Read one YAML document.

    Refuses (``YamlError``) syntax errors, several documents, duplicate keys, keys that are not
    strings, anchors that contain themselves, and what is nested too deeply or too large.
    """
    try:
        return _read(text)
    except RecursionError:
        raise YamlError(1, "values are nested too deeply") from None


def _read(text: str) -> LinedYaml:
    root = _compose(text)
    if root is None:
        raise YamlError(1, "the file is empty")
    lines: dict[DocumentPath, int] = {}
    constructor = _Constructor()
    data = _plain(root, (), lines, constructor, ())
    return LinedYaml(data, lines)


def _compose(text: str) -> yaml.Node | None:
    # libyaml is tenfold quicker; what it refuses is read again for an error in words of one kind.
    if fast := getattr(yaml, "CSafeLoader", None):
        try:
            return cast("yaml.Node | None", yaml.compose(text, fast))  # pyright: ignore[reportUnknownMemberType]
        except (yaml.YAMLError, UnicodeEncodeError):
            pass
    try:
        return cast("yaml.Node | None", yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(mark.line + 1 if mark else 1, error.problem or "not valid YAML") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(line, f"character U+{error.character:04X} is not allowed") from error


def _plain(
    node: yaml.Node,
    path: DocumentPath,
    lines: dict[DocumentPath, int],
    constructor: _Constructor,
    parents: tuple[int, ...],
) -> object:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(lines) > MAX_VALUES:
        raise YamlError(line, f"the file has more than {MAX_VALUES} values")
    if id(node) in parents:
        raise YamlError(line, "an anchor contains itself")
    inner = (*parents, id(node))
    if isinstance(node, yaml.MappingNode):
        result: dict[str, object] = {}
        for key, key_line, value in _pairs(node):
            if key in result:
                raise YamlError(key_line, f"key {key!r} is given twice")
            lines[(*path, key)] = key_line
            result[key] = _plain(value, (*path, key), lines, constructor, inner)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*path, index), lines, constructor, inner)
            for index, item in enumerate(node.value)
        ]
    if node.tag in _NUMBERS and ":" in node.value:
        return node.value  # YAML 1.1 would read 10:30 in base 60, and 09:30 as text
    try:
        value = cast("object", constructor.construct_object(node))  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:  # its own text names "<unicode string>"
        raise YamlError(line, f"value cannot be read: {error.problem}") from error
    except ValueError as error:
        raise YamlError(line, f"value cannot be read: {error}") from error
    return DecimalText(value, node.value) if isinstance(value, float) else value


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[str, int, yaml.Node]]:
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            raise YamlError(line, "keys must be plain strings")
        yield key_node.value, line, value_node
