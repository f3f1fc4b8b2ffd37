"""Every key of every public argument type is passed by a graph test at least once, and acts.

Components of AWS have their argument sets beside their tests, ``VARIANTS`` in
``tests/graph/aws/test_<file>.py``; the others have ``EVERY`` and ``INSTEAD``.
"""

import copy
import importlib
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pulumi
import pytest

import terrace_components as components

from .aws.cloud import AwsRecorder, Cloud, account
from .aws.every_answer import answer_everything
from .test_component_arguments import BY_CLASS, EVERY, INSTEAD, ON_NODE

Path = tuple[str, ...]
ITEM = "[]"
NAMES = [component.__name__ for component in components.COMPONENTS]
# Their sections reach the parts unchanged (test_foundation_aws.py says so); here each section acts.
BY_SECTION = {"FoundationAws"}
# Sets that only this module needs: the other kind of storage, and what others have at its default.
MORE: dict[str, dict[str, Any]] = {
    "AwsNetwork": {"nat": "none", "public_subnets": True},
    "FoundationLocal": {**EVERY["FoundationLocal"], "postgres_storage": BY_CLASS},
    "ModelSimulator": {**EVERY["ModelSimulator"], "storage": ON_NODE},
    "PersistentVolume": {**EVERY["PersistentVolume"], "storage": BY_CLASS},
    "Postgres": {**EVERY["Postgres"], "storage": ON_NODE},
}
# Keys that only check: they act by refusing this.
REFUSED: dict[tuple[str, str], dict[str, Any]] = {("AwsNetwork", "pods"): {"pods": 10_000_000}}


def argument_sets(name: str) -> list[dict[str, Any]]:
    """Sets of arguments of a component that graph tests use."""
    module = getattr(components, name).__module__
    if ".aws." in module:
        tests = importlib.import_module(f".aws.test_{module.rpartition('.')[2]}", __package__)
        sets = [*tests.VARIANTS.values()]
    else:
        merged = {**EVERY[name], **INSTEAD.get(name, {})}
        instead = {key: value for key, value in merged.items() if value is not None}
        sets = [EVERY[name], instead]
    return [*sets, MORE[name]] if name in MORE else sets


def public_keys(annotation: Any, path: Path = ()) -> Iterator[tuple[Path, bool]]:
    """Every key of a public argument type, nested ones too, and whether it may be left out."""
    if typing.is_typeddict(annotation):
        for key, hint in annotation.__annotations__.items():
            yield (*path, key), key in annotation.__optional_keys__
            yield from public_keys(hint, (*path, key))
        return
    origin = typing.get_origin(annotation)
    into = (*path, ITEM) if origin in {list, tuple} else path
    for inner in typing.get_args(annotation):
        yield from public_keys(inner, into)


def passed_keys(value: Any, path: Path = ()) -> Iterator[Path]:
    """The same paths of what was passed."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from passed_keys(inner, (*path, key))
    if isinstance(value, list):
        for inner in value:
            yield from passed_keys(inner, (*path, ITEM))


def without(value: Any, path: Path) -> Any:
    """``value`` without the key at ``path``, in every item of a list on the way."""
    if path[0] == ITEM:
        return [without(item, path[1:]) for item in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {key: inner for key, inner in value.items() if key != path[0]}
    return {**value, path[0]: without(value[path[0]], path[1:])}


@pytest.fixture
def cloud() -> Cloud:
    return answer_everything(account())


@pytest.fixture
def recorder(cloud: Cloud) -> Callable[[], AwsRecorder]:
    return lambda: AwsRecorder(cloud)


@pytest.fixture
def outcome(render: Any) -> Callable[..., Any]:
    """What a component makes of its arguments: resources and outputs; or the refusal."""

    def run(name: str, args: dict[str, Any]) -> Any:
        component = getattr(components, name)

        def program() -> None:
            made = component("it", copy.deepcopy(args))
            for output in component.__annotations__:
                pulumi.export(output, getattr(made, output))

        try:
            graph = render(program)
        except pulumi.InputPropertyError as error:
            return str(error)
        options = {(r.type, r.name): (r.options, r.dependencies) for r in graph.resources}
        return graph.rows(), options, graph.outputs

    return run


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_passed(name: str) -> None:
    public = {path for path, _ in public_keys(getattr(components, f"{name}Args"))}
    passed = {path for args in argument_sets(name) for path in passed_keys(args)}
    assert sorted(".".join(path) for path in public - passed) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_may_be_left_out_acts(outcome: Any, name: str) -> None:
    optional = {path for path, free in public_keys(getattr(components, f"{name}Args")) if free}
    if name in BY_SECTION:
        optional = {path for path in optional if len(path) == 1}
    idle = set(optional)
    for args in argument_sets(name):
        mine = idle & set(passed_keys(args))
        if mine:
            with_it = outcome(name, args)
            assert not isinstance(with_it, str), with_it
            idle -= {path for path in mine if outcome(name, without(args, path)) != with_it}
    for path in {path for path in idle if (name, ".".join(path)) in REFUSED}:
        refused = outcome(name, REFUSED[name, ".".join(path)])
        assert isinstance(refused, str), path
        idle -= {path}
    assert sorted(".".join(path) for path in idle) == []


def test_a_key_that_nobody_passes_is_found() -> None:
    """The walk sees optional, nested and listed keys."""
    public = {".".join(path) for path, _ in public_keys(components.FoundationAwsArgs)}
    assert {"tags", "network.existing.vpc_id", "nodes.taints.[].key", "nodes.reserve"} <= public
    free = {".".join(path) for path, free in public_keys(components.FoundationAwsArgs) if free}
    assert "cluster" not in free
    assert "nodes.taints.[].key" not in free
    assert {"nodes.taints.[].value", "network"} <= free
    assert without({"a": [{"b": 1, "c": 2}]}, ("a", ITEM, "b")) == {"a": [{"c": 2}]}
