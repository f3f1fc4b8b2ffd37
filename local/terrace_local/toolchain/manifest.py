"""The manifest: each binary, its version, and where it may come from. Unknown keys are errors."""

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from terrace_local.toolchain.errors import ManifestError

MANIFEST_FILE = Path(__file__).with_name("manifest.toml")
MODULES_ROOT = Path(__file__).with_name("gomods")
STAGES = (1, 2, 3)

_NAME = r"^[a-z0-9][a-z0-9.-]*$"


def is_trustworthy(url: str) -> bool:
    """Whether what comes from `url` can't be changed on its way: https, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname == "127.0.0.1")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PathProbe(_Strict):
    """How to tell that a binary found on PATH is the wanted version.

    `argv` may use {binary} (the candidate) and {folder} (where it lies); `pattern` is searched in
    its output, line by line, with {version} standing for the manifest's version.
    """

    argv: tuple[str, ...] = Field(min_length=1)
    pattern: str

    def expression(self, version: str) -> re.Pattern[str]:
        return re.compile(self.pattern.replace("{version}", re.escape(version)), re.MULTILINE)


class Download(_Strict):
    """An official release file. With `members` it is a tar archive: binary -> path inside it."""

    url: str
    checksum_url: str
    checksum_format: Literal["sha256sum", "bare"]
    members: dict[str, str] = {}

    @field_validator("url", "checksum_url")
    @classmethod
    def _is_https(cls, value: str) -> str:
        if not is_trustworthy(value):
            raise ValueError("must be an https URL")
        return value


class ModuleFile(_Strict):
    """A file of a Go module, by the module version that a module folder resolves to."""

    module: str
    source: str = Field(alias="from")


class GeneratedFile(ModuleFile):
    """A file written beside a module folder's own sources before it is built.

    With `set_json` the source is a JSON object, and these keys of it are set.
    """

    path: str
    set_json: dict[str, str] = {}


class CopiedFile(ModuleFile):
    """A file of a Go module that is shipped as it is; `resolved_in` is the module folder that
    pins its version (and, by its go.sum, its content)."""

    resolved_in: str


class GoModule(_Strict):
    """How everything of one module folder is compiled."""

    ldflags: str = ""
    tags: tuple[str, ...] = ()
    generated: tuple[GeneratedFile, ...] = ()

    @field_validator("ldflags")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return " ".join(value.split())


class Build(_Strict):
    """The Go fallback: binary -> package in a module folder, and files copied beside it.

    `requires` is the module whose version the folder's go.mod must pin at `module_version`
    (default: the tool's version); a test compares the two.
    """

    module: str
    packages: dict[str, str]
    requires: str | None = None
    module_version: str | None = None
    copied: dict[str, CopiedFile] = {}


class Tool(_Strict):
    """What is fetched, built, cached and versioned as one: one or more binaries.

    A tool `on_request` belongs to no stage: it is made only for who names it.
    """

    name: str = Field(pattern=_NAME)
    version: str = Field(pattern=r"^[0-9][0-9A-Za-z.+-]*$")
    since_stage: Literal[1, 2, 3]
    on_request: bool = False
    binaries: tuple[str, ...] = Field(min_length=1)
    on_path: PathProbe | None = None
    download: Download | None = None
    build: Build | None = None

    @model_validator(mode="after")
    def _sources_cover_binaries(self) -> Self:
        names = set(self.binaries)
        if self.download is None and self.build is None:
            raise ValueError(f"{self.name} has no source: give it a download or a build")
        if self.download is not None:
            given = set(self.download.members) or {self.name}
            if given != names:
                raise ValueError(f"{self.name}: the download gives {given}, wanted are {names}")
        if (
            self.build is not None
            and self.build.packages.keys() | self.build.copied.keys() != names
        ):
            raise ValueError(f"{self.name}: the build does not give exactly {names}")
        return self

    def filled(self, template: str) -> str:
        return template.replace("{version}", self.version).replace("{name}", self.name)


class Manifest(_Strict):
    version: Literal[1]
    modules: dict[str, GoModule]
    tools: tuple[Tool, ...]
    debian: dict[str, str] = {}

    @model_validator(mode="after")
    def _names_are_consistent(self) -> Self:
        for kind, names in (
            ("tool", [tool.name for tool in self.tools]),
            ("binary", [binary for tool in self.tools for binary in tool.binaries]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{kind} named twice: {', '.join(twice)}")
        for tool in self.tools:
            wanted = [tool.build.module] if tool.build else []
            wanted += (
                [file.resolved_in for file in tool.build.copied.values()] if tool.build else []
            )
            for module in wanted:
                if module not in self.modules:
                    known = ", ".join(sorted(self.modules))
                    raise ValueError(f"{tool.name}: no module {module!r}; there are: {known}")
        return self

    def for_stage(self, stage: int, only: Collection[str] = ()) -> tuple[Tool, ...]:
        """The tools that `stage` needs, in the manifest's order; with `only`, those of them.

        Raises `ManifestError` naming the tools there are.
        """
        tools = tuple(tool for tool in self.tools if tool.since_stage <= stage)
        if unknown := sorted(set(only) - {tool.name for tool in tools}):
            known = ", ".join(tool.name for tool in tools)
            raise ManifestError(
                f"stage {stage} has no tool {', '.join(unknown)}; there are: {known}"
            )
        return tuple(
            tool for tool in tools if tool.name in only or (not only and not tool.on_request)
        )


def load_manifest(file: Path = MANIFEST_FILE) -> Manifest:
    """Read and validate a manifest. Raises `ManifestError` naming the file and the property."""
    try:
        document: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return Manifest.model_validate(document)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(str(error), subject=str(file)) from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc']) or '(document)'}: {item['msg']}"
            for item in error.errors()
        ]
        raise ManifestError("is not valid", subject=str(file), last_lines=lines) from error
