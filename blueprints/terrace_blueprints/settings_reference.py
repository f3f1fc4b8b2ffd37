"""`python -m terrace_blueprints.settings_reference`: every setting of a stack, as a page.

The page is docs/aws-settings.md; a test compares the two. All text comes from the docstrings of
the settings themselves.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import is_typeddict

from pydantic import BaseModel

from terrace_blueprints import settings, settings_existing, settings_platform
from terrace_blueprints.settings_aws import FIXED, RESERVE
from terrace_blueprints.spelling import argument_names, camel_case
from terrace_components.aws import foundation_args
from terrace_components.aws.node_group import NodeReserveArgs

HEAD = """\
# Settings of a stack

All keys that `Pulumi.<stack>.yaml` may have, in the words of the code that reads them. Unknown keys
and wrong values are refused before anything runs, with the key and what would be valid. This page
is made by `python -m terrace_blueprints.settings_reference`; a test keeps it fresh. `docs/aws.md`
is the way from nothing to a stack.
"""
Row = tuple[str, str, str, str]
_REGION_ROW: Row = ("aws:region", "text", "on aws", "Region of everything that is made.")


@dataclass(frozen=True)
class Setting:
    """One key as its class documents it: Python name, annotation, default's source, docstring."""

    name: str
    annotation: str
    default: str | None
    text: str

    @property
    def required(self) -> bool:
        """Whether the key must be there."""
        if self.annotation.startswith("NotRequired["):
            return False
        return self.default is None or bool(re.match(r"Field\((?!.*\bdefault)", self.default))


def documented(kind: type) -> Iterator[Setting]:
    """The keys of a TypedDict or of a pydantic model, in their order."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield Setting(
                name=statement.target.id,
                annotation=ast.unparse(statement.annotation),
                default=ast.unparse(statement.value) if statement.value else None,
                text=_docstring(following),
            )


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def page() -> str:
    """The whole page, Markdown."""
    parts = [HEAD, "## Keys of the stack\n", _table(_stack_rows())]
    parts += ["## `terrace:gateway`\n", *_part(settings_platform.GatewaySettings)]
    parts += ["## `terrace:bedrockInvocationLogs`\n"]
    parts += _part(settings_platform.InvocationLogsSettings)
    parts += ["## `terrace:providerSecrets.<VARIABLE>`\n"]
    parts += _part(settings_platform.ProviderSecret)
    parts += ["## `terrace:aws` (substrate stacks on aws)\n"]
    for setting in documented(foundation_args.FoundationAwsArgs):
        kind = _nested(setting.annotation, foundation_args)
        parts += [f"### `terrace:aws.{camel_case(setting.name)}`\n"]
        parts += [f"{setting.text}\n"] if kind is None else _part(kind)
    parts += ["## `terrace:existing`\n", *_part(settings_existing.ExistingSettings)]
    return "\n".join(parts)


def _stack_rows() -> list[Row]:
    rows = [_REGION_ROW]
    for setting in documented(settings.Settings):
        if setting.name != "region":
            key = _alias(setting) or setting.name
            inside = _nested(setting.annotation, settings)
            places = ", ".join(settings._PLACES.get(key, ()))
            value = _words(setting.annotation, inside)
            rows.append((f"terrace:{key}", value, places, setting.text))
    return rows


def _part(kind: type) -> list[str]:
    """What the part is, and a table of its keys."""
    told = re.sub(r"; see `+\w+`+", "", " ".join((inspect.getdoc(kind) or "").split()))
    return [_spelled(told).replace("``", "`") + "\n", _table(_rows(kind))]


def _rows(kind: type) -> list[Row]:
    """A row per key; a mapping is followed by the rows of its own keys."""
    rows: list[Row] = []
    for setting in documented(kind):
        if kind is foundation_args.FoundationLoadBalancerArgs and setting.name in FIXED:
            continue
        key = _alias(setting) or camel_case(setting.name)
        filled = kind is foundation_args.FoundationRegistryArgs and setting.name == "repositories"
        note = "required" if setting.required and not filled else ""
        inside = _nested(setting.annotation, sys.modules[kind.__module__])
        value = _words(setting.annotation, inside)
        text = setting.text or _about(inside)
        if kind is NodeReserveArgs:
            text = re.sub(r"default .*\.$", f"default ``{RESERVE[setting.name]}``.", text)
        if filled:
            text += " Default: those that the platform runs."
        rows.append((key, value, note, text))
        if inside is not None:
            rows += [(f"{key}.{row[0]}", *row[1:]) for row in _rows(inside)]
    return rows


def _about(kind: type | None) -> str:
    return " ".join((inspect.getdoc(kind) or "").split()) if kind else ""


def _alias(setting: Setting) -> str | None:
    found = re.search(r"alias='(\w+)'", setting.default or "")
    return found.group(1) if found else None


def _nested(annotation: str, module: object) -> type | None:
    """The class of a mapping with keys of its own, or of a list of such mappings."""
    for word in re.findall(r"\b[A-Z]\w+", annotation):
        kind = getattr(module, word, None)
        if isinstance(kind, type) and (is_typeddict(kind) or issubclass(kind, BaseModel)):
            return kind
    return None


def _words(annotation: str, inside: type | None) -> str:
    """`list[str]` is a list of text. That a component may also take an output is not said here."""
    text = re.sub(r"NotRequired\[(.*)\]$", r"\1", annotation)
    text = re.sub(r"pulumi\.Input\[(\w+)\]", r"\1", text).replace(" | None", "")
    if match := re.fullmatch(r"(?:list|tuple)\[(.*?)(?:, \.\.\.)?\]", text):
        return f"list of {_words(match.group(1), inside)}"
    if inside is not None or text.startswith("dict["):
        return "mapping"
    if match := re.fullmatch(r"Literal\[(.*)\]", text):
        return match.group(1).replace("'", "").replace(", ", " \\| ")
    return {
        "str": "text",
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
        "Port": "whole number",
    }.get(text, "text")


def _spelled(text: str) -> str:
    """Names of arguments as a settings file spells them."""
    names = argument_names(foundation_args.FoundationAwsArgs)
    return re.sub(r"\w+", lambda word: camel_case(word[0]) if word[0] in names else word[0], text)


def _table(rows: list[Row]) -> str:
    lines = ["| key | value | where, or whether required | meaning |", "|---|---|---|---|"]
    for key, value, note, text in rows:
        meaning = _spelled(text).replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{key}` | {value} | {note} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
