"""Outputs of another stack as plain values, in preview and update alike.

docs/decisions/0004-plain-data-across-stacks.md says why they are not Pulumi outputs.
"""

from typing import Any

import pulumi

from terrace_blueprints.substrates.contract import SubstrateError

READ = "pulumi:pulumi:readStackOutputs"


def full_name(stack: str) -> str:
    """``organization/project/stack`` of a stack of this project."""
    return f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"


def read_output(stack: str, output: str) -> dict[str, Any]:
    """The output of a stack of this project, a mapping.

    Registers a ``StackReference`` too, so that the state tells which stack this one stands on.
    Raises ``SubstrateError`` when there is no such stack or output, or when it holds a secret.
    """
    name = full_name(stack)
    first = f"run `pulumi up --stack {stack}` first"
    try:
        read: dict[str, Any] = pulumi.runtime.invoke(READ, {"name": name}).value or {}
    except Exception as error:  # the SDK has no narrower one for a refused call
        if "unknown stack" in str(error):
            raise SubstrateError(f"there is no stack {stack!r}: {first}") from None
        raise SubstrateError(f"the outputs of stack {stack!r} cannot be read: {error}") from None
    if output in (read.get("secretOutputNames") or ()):
        raise SubstrateError(
            f"output {output!r} of stack {stack!r} is a secret, which a plain value must not be"
        )
    value = (read.get("outputs") or {}).get(output)
    if not isinstance(value, dict):
        raise SubstrateError(f"stack {stack!r} has no output {output!r} yet: {first}")
    pulumi.StackReference(name)
    return value
