"""Pulumi mocks for components on AWS: data sources answered, computed outputs made up.

``render(program)`` is that of ``tests/graph``. ``cloud.answers`` maps the token of a data source
to its answer, or to a function of its arguments; tests add or replace entries before ``render``.
``cloud.outputs`` does so for the computed outputs of resource types (inputs in, outputs out).
"""

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from .cloud import AwsRecorder, Cloud, account, documents


@pytest.fixture
def cloud() -> Cloud:
    """The account that the components of a test are made in."""
    return account()


@pytest.fixture
def recorder(cloud: Cloud) -> Callable[[], AwsRecorder]:
    return lambda: AwsRecorder(cloud)


@pytest.fixture
def refused(render: Any) -> Callable[..., str]:
    """``refused(program, property)``: the reason why ``program`` is refused for ``property``."""

    def run(program: Callable[[], Any], path: str) -> str:
        with pytest.raises(pulumi.InputPropertyError) as raised:
            render(program)
        assert raised.value.property_path == path, raised.value.reason
        return raised.value.reason

    return run


@pytest.fixture
def house_rules() -> Callable[..., None]:
    """``house_rules(graph, name)``: what holds for every component called ``name``."""

    def check(graph: Any, name: str, *, tags: dict[str, str] | None = None) -> None:
        components = [r for r in graph.resources if r.type.startswith("terrace:")]
        assert components
        for child in (r for r in graph.resources if not r.type.startswith("terrace:")):
            assert child.parent, f"{child.name} has no parent"
            assert child.name == name or child.name.startswith(f"{name}-"), child.name
            assert child.inputs.get("name") is None or "{" not in str(child.inputs["name"])
            if "tags" in child.inputs:
                assert child.inputs["tags"]["terrace.dev/component"], child.name
                assert (tags or {}).items() <= child.inputs["tags"].items(), child.name
        for document in documents(graph):
            for statement in document["Statement"]:
                actions = statement["Action"]
                assert "*" not in ([actions] if isinstance(actions, str) else actions)

    return check
