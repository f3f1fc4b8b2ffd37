"""The model catalogue that rules compare with: of the governance ConfigMap, or of a named file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from terrace_policies.iam import without_geography
from terrace_policies.resources import Resource, Stack

GOVERNANCE_KEY = "governance.yaml"


@dataclass(frozen=True)
class Catalogue:
    """A governance spec read without judging it; rules judge."""

    source: str
    urn: str
    text: str
    spec: dict[str, Any]

    def section(self, name: str) -> list[dict[str, Any]]:
        """The mappings of a list in the spec."""
        given = self.spec.get(name)
        listed = cast(list[Any], given) if isinstance(given, list) else []
        return [cast(dict[str, Any], item) for item in listed if isinstance(item, dict)]

    def aws_models(self, *, by_identity: bool = False) -> dict[str, str]:
        """Model id without geography -> name, of the models that Amazon Bedrock itself serves;
        with ``by_identity`` those that are called with the pod's identity, and no keys."""
        bedrock = {
            provider.get("name")
            for provider in self.section("providers")
            if provider.get("kind") == "bedrock"
            and (
                provider.get("credentials") == "ambient"
                or not (by_identity or provider.get("endpoint"))
            )
        }
        return {
            without_geography(str(model.get("upstream_model", "")).rpartition("/")[2]): str(
                model.get("name")
            )
            for model in self.section("models")
            if model.get("provider") in bedrock
        }


def governance_text(config_map: Resource) -> str | None:
    """The spec in a ConfigMap; ``None`` if it holds none."""
    data = config_map.at("data").value
    if not isinstance(data, dict) or GOVERNANCE_KEY not in data:
        return None
    # Not by path: the key has a dot in it.
    value: Any = cast(dict[str, Any], data)[GOVERNANCE_KEY]
    if not isinstance(value, str):
        config_map.at("data").require_known()
        return None
    return value


def parse(text: str, source: str, urn: str = "") -> Catalogue:
    """A catalogue from text; an unreadable one is empty (rule ``governance-valid`` says why)."""
    try:
        spec = yaml.safe_load(text)
    except yaml.YAMLError:
        spec = None
    sections = cast(dict[str, Any], spec) if isinstance(spec, dict) else {}
    return Catalogue(source, urn, text, sections)


def catalogues(stack: Stack, file: str) -> Iterator[Catalogue]:
    """The catalogues that govern a stack. Raises ``OSError`` if ``file`` cannot be read."""
    if file:
        yield parse(Path(file).read_text(encoding="utf-8"), file)
    for config_map in stack.kinds("ConfigMap"):
        text = governance_text(config_map)
        if text is not None:
            yield parse(text, config_map.name, config_map.urn)
