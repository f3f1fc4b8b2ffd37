"""Resources that a program passes to the component, such as `service_role`: read without loading
pulumi_aws."""

import importlib.metadata
from typing import Final

import pulumi
from pulumi.runtime import register_resource_module
from semver import VersionInfo

AWS_VERSION: Final = importlib.metadata.version("pulumi-aws")
_OUTPUTS: Final = {
    "iam/role": ("arn", "name"),
    "ec2/securityGroup": ("arn", "name", "vpcId"),
}


class Reference(pulumi.CustomResource):
    """An AWS resource that exists in the program, with the few outputs that are needed of it."""


class _Module:
    def __init__(self, module: str) -> None:
        self._module = module

    def version(self) -> VersionInfo | None:
        return None

    def construct(self, name: str, typ: str, urn: str) -> pulumi.Resource:
        outputs = dict.fromkeys(_OUTPUTS[self._module])
        return Reference(typ, name, outputs, pulumi.ResourceOptions(urn=urn))


def register_references() -> None:
    """Lets references to these types arrive as resources."""
    for module in _OUTPUTS:
        register_resource_module("aws", module, _Module(module))  # type: ignore[arg-type]
