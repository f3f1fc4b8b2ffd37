"""Messages of the provider protocol, and the plain values in them."""

import json
import re
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import any_pb2
from pulumi.runtime.proto import provider_pb2, status_pb2

from .models import PartialError, Problem, touches
from .values import Properties, to_struct


def public(properties: Properties) -> Properties:
    """Without what the simulation keeps for itself (`__...`)."""
    return {name: value for name, value in properties.items() if not name.startswith("__")}


def decoded(config: Properties) -> Properties:
    """Provider arguments with their JSON-encoded values decoded (the engine sends nested ones as
    text)."""
    result: Properties = {}
    for key, value in config.items():
        result[key] = value
        if isinstance(value, str) and re.match(r'^\s*([\[{"]|true$|false$|-?\d+$)', value):
            try:
                result[key] = json.loads(value)
            except ValueError:
                continue
            if isinstance(result[key], int | float) and not isinstance(result[key], bool):
                result[key] = value  # account ids and versions stay text
    return result


def failures(problems: Iterable[Problem]) -> list[Any]:
    """The protocol's messages of what is wrong."""
    return [
        provider_pb2.CheckFailure(property=problem.property, reason=problem.reason)
        for problem in problems
    ]


def difference(changed: list[str], replace_on: frozenset[str], *, delete_first: bool) -> Any:
    """The protocol's message of changed paths; those in or around `replace_on` make a new one."""
    kinds = provider_pb2.PropertyDiff
    replaces = [path for path in changed if touches(path, replace_on)]
    return provider_pb2.DiffResponse(
        changes=(
            provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
        ),
        replaces=sorted({path.split(".")[0].split("[")[0] for path in replaces}),
        diffs=sorted({path.split(".")[0].split("[")[0] for path in changed}),
        detailedDiff={
            path: kinds(
                kind=kinds.UPDATE_REPLACE if path in replaces else kinds.UPDATE, inputDiff=True
            )
            for path in changed
        },
        hasDetailedDiff=True,
        deleteBeforeReplace=bool(replaces) and delete_first,
    )


def type_of(request: Any) -> str:
    """The type token; older engines give it in the URN only."""
    return request.type or request.urn.split("::")[2].split("$")[-1]


def name_of(request: Any) -> str:
    """The name in the program; older engines give it in the URN only."""
    return request.name or request.urn.split("::")[3]


def verb(operation: str) -> str:
    """For error texts: `creating` and so on."""
    return {
        "create": "creating",
        "update": "updating",
        "delete": "deleting",
        "read": "reading",
    }.get(operation, "calling")


def abort_partially(context: grpc.ServicerContext, error: PartialError) -> None:
    """Tells the engine that the thing exists but is not ready: it goes into the state with the
    reason."""
    detail = provider_pb2.ErrorResourceInitFailed(
        id=error.item.id,
        properties=to_struct(public(error.item.outputs)),
        inputs=to_struct(public(error.item.inputs)),
        reasons=[error.reason],
    )
    packed = any_pb2.Any()
    packed.Pack(detail)
    status = status_pb2.Status(
        code=grpc.StatusCode.UNKNOWN.value[0], message=error.reason, details=[packed]
    )
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, error.reason)
