"""The components as a provider for other languages: what arrives, and what is said about it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pulumi
import pytest

from terrace_components.hosting import HostedComponents

REQUIRED = {
    "namespace": "metrics",
    "image": "registry.example.com/prometheus:1",
    "resources": {"cpu": "100m", "memory": "256Mi", "memoryLimit": "512Mi"},
    "targets": [{"namespace": "team-a", "pod": "agent", "port": 9090.0}],
}


@pytest.fixture(scope="module")
def provider() -> HostedComponents:
    return HostedComponents()


@pytest.fixture
def output() -> Iterator[pulumi.Output[int]]:
    """An output, as one of another resource arrives."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield pulumi.Output.from_input(48)
    pending = asyncio.all_tasks(loop)
    loop.run_until_complete(asyncio.gather(*pending))
    asyncio.set_event_loop(None)
    loop.close()


def mapped(provider: HostedComponents, component: str, inputs: dict[str, Any]) -> dict[str, Any]:
    definition = provider._component_defs[component]
    return dict(provider.map_inputs(inputs, definition))


def test_names_become_pythons_at_every_depth(provider: HostedComponents) -> None:
    args = mapped(provider, "Observability", {**REQUIRED, "retentionHours": 48.0})
    assert args["resources"] == {"cpu": "100m", "memory": "256Mi", "memory_limit": "512Mi"}
    assert args["retention_hours"] == 48
    assert args["targets"] == [{"namespace": "team-a", "pod": "agent", "port": 9090}]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("retentionHours", lambda args, value: args | {"retentionHours": value}),
        ("resources", lambda args, value: args | {"resources": value}),
        (
            "resources.memoryLimit",
            lambda args, value: args | {"resources": args["resources"] | {"memoryLimit": value}},
        ),
        (
            "targets[0].port",
            lambda args, value: args | {"targets": [args["targets"][0] | {"port": value}]},
        ),
    ],
)
def test_an_output_where_the_value_must_be_known_is_named(
    provider: HostedComponents, output: pulumi.Output[int], path: str, place: Any
) -> None:
    with pytest.raises(pulumi.InputPropertyError) as caught:
        mapped(provider, "Observability", place(REQUIRED, output))
    assert caught.value.property_path == path
    assert "must be known when the program runs" in str(caught.value.reason)


def test_an_output_where_one_is_taken_is_handed_on(
    provider: HostedComponents, output: pulumi.Output[int]
) -> None:
    args = mapped(provider, "Observability", {**REQUIRED, "namespace": output})
    assert args["namespace"] is output
