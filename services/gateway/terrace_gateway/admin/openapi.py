"""The admin API's OpenAPI document, made of the route table: it cannot say anything else."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from terrace_gateway import VERSION
from terrace_gateway.admin.pending import PENDING, PENDING_SCHEMA
from terrace_gateway.admin.routing import PREFIX, AdminRoute

_REFS = "#/components/schemas/{model}"
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
_ERRORS = {
    "400": "The request is not what this call takes; the message says what would be right.",
    "401": "No valid admin key or token.",
    "403": "The role does not allow this call, or a kill switch stops the administrator.",
    "503": "Not now: the database is away, this replica has no policy to go by, or the token cannot"
    " be checked. Nothing was changed, unless the message says that this is not known.",
}


def openapi_document(routes: Sequence[AdminRoute]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of ``routes``."""
    bodies = {route.body for route in routes if route.body is not None}
    answers = {route.answer for route in routes if not isinstance(route.answer, str)}
    schemas = _schemas(bodies, answers)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", PREFIX + route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Terrace gateway: admin API",
            "version": VERSION,
            "description": "Money is in micro-USD as integers. Every change is in the audit"
            " record, with its actor.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"admin": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": _ERROR_SCHEMA},
            "securitySchemes": {
                "admin": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The admin key, or an OIDC token with a role.",
                }
            },
        },
    }


def _schemas(bodies: set[type[BaseModel]], answers: set[type[BaseModel]]) -> dict[str, Any]:
    named = sorted(
        [(model, "validation") for model in bodies]
        + [(model, "serialization") for model in answers],
        key=lambda pair: (pair[0].__name__, pair[1]),
    )
    _, made = models_json_schema(named, ref_template=_REFS)  # pyright: ignore[reportArgumentType]
    return made.get("$defs", {})


def _operation(route: AdminRoute) -> dict[str, Any]:
    words = re.findall(r"[a-z0-9_]+", route.path)
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.summary,
        "description": f"Needs the role `{route.role}`.",
        "tags": [words[0] if words else "admin"],
        "responses": {str(route.status): _answer(route)}
        | {
            status: {
                "description": text,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            for status, text in _ERRORS.items()
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", route.path)
    ] + [
        {
            "name": query.name,
            "in": "query",
            "description": query.description,
            "schema": {"type": query.kind},
        }
        for query in route.query
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(route.body)}},
        }
    return operation


def _answer(route: AdminRoute) -> dict[str, Any]:
    if isinstance(route.answer, str):
        description, schema = route.answer, dict[str, Any](type="object")
    else:
        description = (route.answer.__doc__ or route.answer.__name__).strip()
        schema = dict[str, Any](_reference(route.answer))
    if route.changes_policy:
        schema["properties"] = {PENDING: PENDING_SCHEMA}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFS.format(model=model.__name__)}
