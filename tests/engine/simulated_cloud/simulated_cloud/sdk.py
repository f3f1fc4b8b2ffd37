"""What a Pulumi SDK package says about its resources, read from its installed classes.

Importing the classes of one AWS service takes a second or more, so what was read is kept as one
JSON file per resource type in a cache directory named by the SDK's version; afterwards nothing of
the SDK is imported.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import tempfile
import types
import typing
import warnings
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

CACHE_VARIABLE: Final = "SIMULATED_CLOUD_CACHE"
_FORMAT: Final = "2"  # changes when the files below are written differently

Kind = Any
"""A type as JSON: `"string"`, `"integer"`, `"number"`, `"boolean"`, `"any"`, `"asset"`, or a list:
`["list", kind]`, `["map", kind]`, `["object", name]`, `["union", kind, ...]`, `["enum", value,
...]`."""


@dataclass(frozen=True)
class Property:
    kind: Kind
    required: bool = False


@dataclass(frozen=True)
class ResourceSchema:
    """One resource type: what it takes and gives, and the nested objects that these mention."""

    token: str
    inputs: dict[str, Property]
    outputs: dict[str, Kind]
    objects: dict[str, dict[str, Property]] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ResourceSchema":
        raw = json.loads(text)
        return cls(
            token=raw["token"],
            inputs={name: Property(**value) for name, value in raw["inputs"].items()},
            outputs=raw["outputs"],
            objects={
                name: {key: Property(**value) for key, value in properties.items()}
                for name, properties in raw["objects"].items()
            },
        )


class Sdk:
    """The installed Python package `pulumi_<package>`."""

    def __init__(self, package: str, cache: Path | None = None) -> None:
        self.package = package
        self.module = f"pulumi_{package}"
        self.version = importlib.metadata.version(self.module.replace("_", "-"))
        base = cache or Path(
            os.environ.get(CACHE_VARIABLE)
            or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simulated-cloud"
        )
        self._cache = base / f"{package}-{self.version}-{_FORMAT}"
        self._schemas: dict[str, ResourceSchema | None] = {}

    def schema(self, token: str) -> ResourceSchema | None:
        """The schema of a resource type, or None when the SDK has no such type."""
        if token not in self._schemas:
            file = self._cache / (re.sub(r"[^\w.]", "_", token) + ".json")
            try:
                self._schemas[token] = ResourceSchema.from_json(file.read_text())
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                found = self._read(token)
                if found is not None:
                    _write_whole(file, found.to_json())
                self._schemas[token] = found
        return self._schemas[token]

    def tokens(self) -> dict[str, tuple[str, str]]:
        """Every resource type of the package: token -> (module, class name)."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{self.module} is not installed")
        # The package registers its types with a JSON text in its __init__; reading that spares the
        # import.
        source = Path(spec.origin).read_text()
        text = source[source.index("resource_modules=") :].split('"""', 2)[1]
        return {
            token: (module["fqn"], name)
            for module in json.loads(text)
            for token, name in module["classes"].items()
        }

    def _read(self, token: str) -> ResourceSchema | None:
        place = self.tokens().get(token)
        if place is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # SDKs warn of old classes of their own when they are imported
            module, name = importlib.import_module(place[0]), place[1]
        arguments = getattr(module, f"{name}InitArgs", None) or getattr(module, f"{name}Args", None)
        from pulumi import _types  # the SDK's own reading of its classes; there is no public one

        objects: dict[str, dict[str, Property]] = {}
        return ResourceSchema(
            token=token,
            inputs=_properties(arguments, objects) if arguments else {},
            outputs={
                key: _kind(hint, objects)
                for key, hint in _types.resource_types(getattr(module, name)).items()
            },
            objects=objects,
        )


def _properties(cls: type, objects: dict[str, dict[str, Property]]) -> dict[str, Property]:
    from pulumi import _types

    wire_names = _types.input_type_py_to_pulumi_names(cls)
    hints = _types.input_type_types(cls)
    required = _required(cls, wire_names)
    return {name: Property(_kind(hint, objects), name in required) for name, hint in hints.items()}


def _required(cls: type, wire_names: dict[str, str]) -> set[str]:
    init: Any = cls.__init__
    code = init.__code__
    defaults = set(init.__kwdefaults__ or {})
    positional = code.co_varnames[1 : code.co_argcount]
    defaults |= set(positional[len(positional) - len(init.__defaults__ or ()) :])
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return {wire_names.get(name, name) for name in names if name not in defaults}


def _kind(hint: Any, objects: dict[str, dict[str, Property]]) -> Kind:  # noqa: PLR0911, PLR0912
    from pulumi import Asset, Archive, Output, Resource, _types  # noqa: I001

    plain = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if hint in plain:
        return plain[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        members: list[Kind] = []
        for member in arguments:
            if typing.get_origin(member) in (Output, Awaitable) or member in (type(None), Output):
                continue
            kind = _kind(member, objects)
            if kind not in members:
                members.append(kind)
        return members[0] if len(members) == 1 else ["union", *members] if members else "any"
    if origin is typing.Literal:
        return ["enum", *arguments]
    if origin is not None and arguments:
        name = getattr(origin, "__name__", "")
        if name in ("Sequence", "list"):
            return ["list", _kind(arguments[0], objects)]
        if name in ("Mapping", "dict"):
            return ["map", _kind(arguments[1], objects)]
        return "any"
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return ["enum", *(member.value for member in hint)]
        if issubclass(hint, Asset | Archive):
            return "asset"
        if issubclass(hint, Resource):
            return "any"
        if _types.is_input_type(hint) or _types.is_output_type(hint):
            name = f"{hint.__module__}.{hint.__qualname__}"
            if name not in objects:
                objects[name] = {}  # first, because objects may contain themselves
                objects[name] = (
                    _properties(hint, objects)
                    if _types.is_input_type(hint)
                    else {
                        key: Property(_kind(value, objects))
                        for key, value in _types.output_type_types(hint).items()
                    }
                )
            return ["object", name]
    return "any"


def _write_whole(file: Path, text: str) -> None:
    """Written beside and moved, because several provider processes fill the cache at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
        part.write(text)
    Path(part.name).replace(file)
