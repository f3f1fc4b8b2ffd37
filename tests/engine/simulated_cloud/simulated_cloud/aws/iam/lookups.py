"""Policy documents built from statements, and look-ups of roles and policies."""

import json
import zlib
from typing import Any

from ...models import CloudError
from ...values import Properties
from ...world import World
from .attachments import AWS_POLICIES
from .policies import POLICY
from .roles import ROLE


def get_policy_document(arguments: Properties, world: World) -> Properties:
    """The document of `statements`, merged with the source and override documents as the provider
    does."""
    del world
    sources = [json.loads(text) for text in arguments.get("sourcePolicyDocuments") or [] if text]
    if arguments.get("sourceJson"):
        sources.insert(0, json.loads(arguments["sourceJson"]))
    overrides = [
        json.loads(text) for text in arguments.get("overridePolicyDocuments") or [] if text
    ]
    if arguments.get("overrideJson"):
        overrides.append(json.loads(arguments["overrideJson"]))
    statements = [
        statement for document in sources for statement in _listed(document.get("Statement"))
    ]
    statements += [_statement(raw) for raw in arguments.get("statements") or []]
    for document in overrides:
        for statement in _listed(document.get("Statement")):
            same = [
                index
                for index, old in enumerate(statements)
                if statement.get("Sid") and old.get("Sid") == statement["Sid"]
            ]
            if same:
                statements[same[0]] = statement
            else:
                statements.append(statement)
    document: dict[str, Any] = {"Version": arguments.get("version") or "2012-10-17"}
    if arguments.get("policyId"):
        document["Id"] = arguments["policyId"]
    if statements:
        document["Statement"] = statements
    text = json.dumps(document, indent=2)
    minified = json.dumps(document, separators=(",", ":"))
    return {
        **arguments,
        "id": str(zlib.crc32(text.encode())),
        "json": text,
        "minifiedJson": minified,
    }


def _statement(raw: Properties) -> dict[str, Any]:
    statement: dict[str, Any] = {}
    if raw.get("sid"):
        statement["Sid"] = raw["sid"]
    statement["Effect"] = raw.get("effect") or "Allow"
    for source, target in (
        ("actions", "Action"),
        ("notActions", "NotAction"),
        ("resources", "Resource"),
        ("notResources", "NotResource"),
    ):
        if raw.get(source):
            statement[target] = _one_or_list(raw[source])
    for source, target in (("principals", "Principal"), ("notPrincipals", "NotPrincipal")):
        if raw.get(source):
            statement[target] = _principals(raw[source])
    conditions: dict[str, dict[str, Any]] = {}
    for condition in raw.get("conditions") or []:
        conditions.setdefault(condition["test"], {})[condition["variable"]] = _one_or_list(
            condition["values"]
        )
    if conditions:
        statement["Condition"] = conditions
    return statement


def _principals(raw: list[Properties]) -> Any:
    if any(item["type"] == "*" for item in raw):
        return "*"
    merged: dict[str, list[Any]] = {}
    for item in raw:
        merged.setdefault(item["type"], []).extend(item["identifiers"])
    return {kind: _one_or_list(values) for kind, values in merged.items()}


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else sorted(values, reverse=True)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def get_role(arguments: Properties, world: World) -> Properties:
    """A role by name."""
    found = world.get(arguments["name"], ROLE)
    if found is None:
        raise CloudError("NoSuchEntity", f"the role with name {arguments['name']} cannot be found")
    return {
        **found.outputs,
        "id": found.id,
        "roleLastUseds": [],
        "permissionsBoundary": found["permissionsBoundary"] or "",
        "tags": found["tags"] or {},
    }


def get_policy(arguments: Properties, world: World) -> Properties:
    """A managed policy by ARN or name, AWS' own included."""
    arn, name = arguments.get("arn"), arguments.get("name")
    for item in world.all(POLICY):
        if item.arn == arn or (name and item["name"] == name):
            return {**item.outputs, "id": item.id, "tags": item["tags"] or {}}
    wanted = str(arn).split(":policy/", 1)[-1] if arn else name
    own = next(
        (entry for entry in AWS_POLICIES if wanted in (entry, entry.rsplit("/", 1)[-1])), None
    )
    if own is None:
        raise CloudError("NoSuchEntity", f"policy {arn or name} cannot be found")
    full = f"arn:{world.place.partition}:iam::aws:policy/{own}"
    document = json.dumps({"Version": "2012-10-17", "Statement": []})
    return {
        "arn": full,
        "id": full,
        "name": own.rsplit("/", 1)[-1],
        "path": "/",
        "policy": document,
        "policyId": "ANPASIMULATED",
        "attachmentCount": 0,
        "description": "",
        "tags": {},
    }


FUNCTIONS = {
    "aws:iam/getPolicyDocument:getPolicyDocument": get_policy_document,
    "aws:iam/getRole:getRole": get_role,
    "aws:iam/getPolicy:getPolicy": get_policy,
}
