"""Hosts the components for programs in other Pulumi languages."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi.provider
from pulumi.provider.experimental.analyzer import PropertyDefinition, PropertyType
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.provider import ConstructResult
from pulumi.provider.server import ComponentInitError

from terrace_components import COMPONENTS, PACKAGE, VERSION


class HostedComponents(ComponentProvider):
    """The components as a provider that names what is wrong with an argument.

    Pulumi's own host calls ``int()`` on an output that is given for an integer, and takes one that
    is given for an object as an empty object.
    """

    def __init__(self) -> None:
        super().__init__(list(COMPONENTS), PACKAGE, version=VERSION)

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Any,
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Builds the component. An argument that it refuses is named as other languages spell it,
        without Python's traceback."""
        try:
            return super().construct(name, resource_type, inputs, options)
        except ComponentInitError as error:
            refused = error.inner
            if not isinstance(refused, pulumi.InputPropertyError):
                raise
            path, reason = str(refused.property_path), str(refused.reason)
        raise pulumi.InputPropertyError(_camel_case(path), reason)

    def map_input_properties(
        self,
        inputs: Any,
        properties: dict[str, PropertyDefinition],
        mapping: dict[str, str],
        component_name: str,
        property_path: str,
    ) -> Any:
        """The arguments in Python's spelling.

        Raises ``InputPropertyError`` for an output where the program must know the value.
        """
        given: Mapping[str, Any] = inputs
        later: dict[str, Any] = {}
        for name, definition in properties.items():
            value = given.get(name)
            if not isinstance(value, pulumi.Output):
                continue
            if definition.plain or definition.ref:
                raise pulumi.InputPropertyError(
                    f"{property_path}.{name}" if property_path else name,
                    "must be known when the program runs: write the value itself, not an output "
                    "of another resource",
                )
            if definition.type == PropertyType.INTEGER:
                later[name] = value
        mapped: dict[str, Any] = dict(
            super().map_input_properties(
                {name: value for name, value in given.items() if name not in later},
                {name: value for name, value in properties.items() if name not in later},
                mapping,
                component_name,
                property_path,
            )
        )
        return mapped | {mapping[name]: value for name, value in later.items()}


def _camel_case(path: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found.group(1).upper(), path)


def host() -> None:
    """Serve the components to the engine that started this process."""
    pulumi.provider.main(HostedComponents(), sys.argv[1:])
