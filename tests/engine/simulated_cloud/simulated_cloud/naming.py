"""Pulumi's auto-naming, as the bridged providers do it at Check."""

import hashlib
import re
import secrets
from typing import Any

from .models import AutoName, ResourceModel
from .values import Properties

_SUFFIX = r"[0-9a-f]{7}"


def with_auto_name(
    model: ResourceModel, name: str, inputs: Properties, old: Properties, request: Any
) -> Properties:
    """`inputs` with the physical name filled in: the old one when there is one, else a new one.

    `request` is the protocol's CheckRequest: its random seed makes a preview and its update agree,
    and its autonaming options are the project's (`pulumi:autonaming`).
    """
    rule = model.auto_name
    if (
        rule is None
        or inputs.get(rule.property) is not None
        or inputs.get(f"{rule.property}Prefix") is not None
    ):
        return inputs
    if old.get(rule.property):
        return {**inputs, rule.property: old[rule.property]}
    if request.HasField("autonaming"):
        disabled = request.autonaming.mode == type(request.autonaming).Mode.DISABLE
        if disabled or request.autonaming.proposed_name:
            return (
                inputs if disabled else {**inputs, rule.property: request.autonaming.proposed_name}
            )
    seed = bytes(request.randomSeed)
    digest = hashlib.sha256(seed).hexdigest() if seed else secrets.token_hex(4)
    stem = _stem(rule, name)
    return {**inputs, rule.property: f"{stem}{rule.separator}{digest[:7]}"}


def auto_named(model: ResourceModel, name: str, inputs: Properties) -> bool:
    """Whether the physical name was made by `with_auto_name`."""
    rule = model.auto_name
    if rule is None:
        return False
    found = inputs.get(rule.property)
    return isinstance(found, str) and bool(
        re.fullmatch(re.escape(_stem(rule, name)) + re.escape(rule.separator) + _SUFFIX, found)
    )


def named(model: ResourceModel, inputs: Properties, existing: str | None = None) -> Properties:
    """`inputs` with the name that the provider makes up at create, of the prefix, when neither
    program nor auto-naming gave one; `existing` is the name that it made up before."""
    rule = model.auto_name
    if rule is None or inputs.get(rule.property) is not None:
        return inputs
    prefix = inputs.get(f"{rule.property}Prefix") or f"{rule.prefix}terraform-"
    return {
        **inputs,
        rule.property: (
            existing or f"{prefix}{secrets.randbelow(10**20):020}{'0' * 6}"[: rule.max_length]
        ),
    }


def _stem(rule: AutoName, name: str) -> str:
    return (
        rule.prefix
        + (name.lower() if rule.lower else name)[: rule.max_length - len(rule.prefix) - 8]
    )
