"""`pulumi-resource-eks`: constructs `eks:index:Cluster`.

The program of the real pulumi-eks could not be read here (its packages hold the SDK only), so which
children it registers is an assumption from its documentation. Every assumed child is logged and
listed by `python -m simulated_cloud assumed`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pulumi
from pulumi.provider import CallResult, ConstructResult, Provider
from pulumi.provider import main as serve

from ..inventory import Inventory
from ..schema_check import Problem, check_schema
from ..sdk import Sdk
from ..values import UNKNOWN
from .cluster import Cluster
from .references import register_references
from .settings import refusals

CLUSTER: Final = "eks:index:Cluster"


class EksProvider(Provider):
    """Serves Construct and the method `getKubeconfig`."""

    def __init__(self, inventory: Inventory, sdk: Sdk) -> None:
        super().__init__(sdk.version)
        self.inventory = inventory
        self.sdk = sdk

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Mapping[str, Any],
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        if resource_type != CLUSTER:
            raise NotImplementedError(
                f"the simulated pulumi-eks does not know {resource_type}, only {CLUSTER}"
            )
        problems = [*_schema_problems(self.sdk, resource_type, inputs), *refusals(inputs)]
        if problems:
            raise pulumi.InputPropertiesError(
                f"{resource_type} {name!r}",
                [
                    {"property_path": problem.property, "reason": problem.reason}
                    for problem in problems
                ],
            )
        cluster = Cluster(name, inputs, self.inventory, options)
        return ConstructResult(cluster.urn, cluster.state())

    def call(self, token: str, args: Mapping[str, Any]) -> CallResult:
        if token != "eks:index:Cluster/getKubeconfig":
            raise NotImplementedError(f"the simulated pulumi-eks does not know the method {token}")
        component = args["__self__"]
        return CallResult({"result": getattr(component, "kubeconfigJson", "{}")})


def _schema_problems(sdk: Sdk, token: str, inputs: Mapping[str, Any]) -> Sequence[Problem]:
    schema = sdk.schema(token)
    if schema is None:
        return []
    return list(check_schema({key: _plain(value) for key, value in inputs.items()}, schema))


def _plain(value: Any) -> Any:
    """The value without outputs and resources, which the types cannot be checked of."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else UNKNOWN


def main() -> None:
    # pulumi.provider reads the command line itself and expects the engine's address first.
    sys.argv = [sys.argv[0], *sys.argv[2:]]
    sdk = Sdk("eks")
    sdk.schema(CLUSTER)
    if (
        "pulumi_aws" not in sys.modules
    ):  # reading the schema the first time loads it, with references of its own
        register_references()
    serve(EksProvider(Inventory(), sdk), sys.argv[1:])
