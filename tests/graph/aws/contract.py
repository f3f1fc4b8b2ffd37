"""What every component keeps to, checked on argument sets that together name all its arguments."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pulumi
import pytest

import terrace_components as components

Variants = Mapping[str, dict[str, Any]]


def make(name: str, args: Mapping[str, Any], **changes: Any) -> Callable[[], Any]:
    """A program with the component ``name`` called ``it``. ``None`` takes an argument away."""
    given = {**copy.deepcopy(dict(args)), **changes}
    given = {key: value for key, value in given.items() if value is not None}
    return lambda: getattr(components, name)("it", given)


def check_component(
    render: Any, snapshot: Any, house_rules: Any, name: str, variants: Variants
) -> None:
    """Every argument is in a variant; the graph is the recorded one, the same in preview and with
    numbers as floats; the house's rules hold; unknown and missing arguments are refused by name."""
    named = {key for args in variants.values() for key in args}
    public = getattr(components, f"{name}Args")
    assert named == set(public.__annotations__)
    assert name in [component.__name__ for component in components.COMPONENTS]
    for variant, args in variants.items():
        graph = render(make(name, args))
        snapshot(f"component-{name}-{variant}", graph.rows())
        house_rules(graph, "it", tags=args.get("tags"))
        rows = _names(graph)
        assert _names(render(make(name, args), preview=True)) == rows
        assert render(make(name, _floats(args))).rows() == graph.rows()
    args = next(iter(variants.values()))
    refused = next(iter(args)) + "_"
    with pytest.raises(pulumi.InputPropertyError) as raised:
        render(make(name, args, **{refused: "x"}))
    assert raised.value.property_path == refused
    assert all(key in raised.value.reason for key in public.__annotations__)
    for key in public.__required_keys__:
        with pytest.raises(pulumi.InputPropertyError) as raised:
            render(make(name, args, **{key: None}))
        assert (raised.value.property_path, raised.value.reason) == (key, "is required")


def _names(graph: Any) -> list[tuple[str, str]]:
    return sorted((r.type, r.name) for r in graph.resources)


def _floats(value: Any) -> Any:
    """As the engine hands numbers to a hosted component."""
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return float(value) if type(value) is int else value
