"""Runs a program under Pulumi's mocks and hands back what it registered."""

import asyncio
import json
import os
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime import mocks as pulumi_mocks
from pulumi.runtime import settings as pulumi_settings
from pulumi.runtime import stack as pulumi_stack

from terrace_blueprints.governance_spec import governance_text
from terrace_blueprints.program import build, export
from terrace_blueprints.settings import Settings
from terrace_blueprints.substrates.contract import Substrate
from terrace_blueprints.substrates.local import local_substrate
from terrace_common.substrate import LocalSubstrateFile

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"
POD_KINDS = {
    "kubernetes:apps/v1:Deployment",
    "kubernetes:apps/v1:StatefulSet",
    "kubernetes:batch/v1:Job",
}

OPTIONS = (
    "protect",
    "retainOnDelete",
    "deletedWith",
    "deleteBeforeReplace",
    "ignoreChanges",
    "replaceOnChanges",
    "additionalSecretOutputs",
)


@dataclass(frozen=True)
class Resource:
    """One registration, with inputs in Kubernetes' own spelling."""

    type: str
    name: str
    parent: str
    inputs: dict[str, Any]
    provider: str
    custom: bool
    dependencies: frozenset[str]
    """Names of what must be there before; direct ones."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options that are set: protect, retainOnDelete, deletedWith, ignoreChanges, ..."""

    @property
    def pod(self) -> dict[str, Any]:
        return self.inputs["spec"]["template"]["spec"]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def object_name(self) -> str:
        """namespace/name of the Kubernetes object."""
        metadata = self.inputs["metadata"]
        return f"{metadata.get('namespace', '')}/{metadata['name']}"


@dataclass(frozen=True)
class Graph:
    """Everything a program registered."""

    resources: list[Resource]
    outputs: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: str) -> list[Resource]:
        return [r for r in self.resources if r.type.rpartition(":")[2] == kind]

    def one(self, kind: str, object_name: str | None = None) -> Resource:
        found = [r for r in self.of(kind) if object_name is None or r.object_name == object_name]
        assert len(found) == 1, f"{kind} {object_name}: {[r.name for r in found]}"
        return found[0]

    def pods(self) -> list[Resource]:
        return [r for r in self.resources if r.type in POD_KINDS]

    def needs(self, resource: Resource) -> set[str]:
        """Names of everything that must be there before ``resource``."""
        by_name: dict[str, set[str]] = {}
        for r in self.resources:
            # A child waits for its parent, and with it for what the parent depends on.
            by_name.setdefault(r.name, set()).update(r.dependencies, {r.parent})
        found: set[str] = set()
        wanted = {*resource.dependencies, resource.parent}
        while wanted:
            name = wanted.pop()
            if name not in found:
                found.add(name)
                wanted |= by_name.get(name, set())
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Sorted, so that the order of concurrent registrations does not matter."""
        rows = [
            {
                "type": r.type,
                "name": r.name,
                "parent": r.parent,
                "provider": r.provider,
                "inputs": r.inputs,
            }
            for r in self.resources
        ]
        return sorted(rows, key=lambda row: (row["type"], row["name"]))


class _Recorder(pulumi_mocks.Mocks):
    """Echoes inputs, as the API server does for what it is given."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.registered: dict[tuple[str, str], pulumi_mocks.MockResourceArgs] = {}

    def new_resource(self, args: pulumi_mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        key = (args.typ, args.name)
        assert key not in self.registered, f"two resources have the name {key}"
        self.registered[key] = args
        return f"{args.name}-id", dict(args.inputs)

    def call(
        self, args: pulumi_mocks.MockCallArgs
    ) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"the program called a data source: {args.token}")


class _Monitor(pulumi_mocks.MockMonitor):
    """Keeps the parent and the dependencies of each registration too."""

    def __init__(self, mocks: _Recorder) -> None:
        super().__init__(mocks)
        self.parents: dict[tuple[str, str], str] = {}
        self.dependencies: dict[tuple[str, str], frozenset[str]] = {}
        self.options: dict[tuple[str, str], dict[str, Any]] = {}

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the name of the RPC
        self.parents[(request.type, request.name)] = request.parent.rpartition("::")[2]
        self.dependencies[(request.type, request.name)] = frozenset(
            urn.rpartition("::")[2] for urn in request.dependencies
        )
        self.options[(request.type, request.name)] = {
            option: value for option in OPTIONS if (value := _plain(getattr(request, option)))
        }
        if request.customTimeouts.create or request.customTimeouts.update:
            self.options[(request.type, request.name)]["customTimeouts"] = {
                "create": request.customTimeouts.create,
                "update": request.customTimeouts.update,
            }
        with _loop_of_this_thread():
            return super().RegisterResource(request)

    def ReadResource(self, request: Any) -> Any:  # noqa: N802  the name of the RPC
        with _loop_of_this_thread():
            return super().ReadResource(request)

    def Invoke(self, request: Any) -> Any:  # noqa: N802  the name of the RPC
        with _loop_of_this_thread():
            return super().Invoke(request)


def _plain(option: Any) -> Any:
    """A scalar option as it is; a list without its wire type; ``deletedWith`` as a name."""
    if isinstance(option, str):
        return option.rpartition("::")[2]
    return option if isinstance(option, bool) else list(option)


@contextmanager
def _loop_of_this_thread() -> Iterator[None]:
    """Pulumi answers in worker threads and would leave a loop open in each."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class _OutputsOf(set[Any]):
    """What Pulumi waits for at the end of a program: what is of the program's own loop. The threads
    that answer make Outputs too, of loops that are closed by then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def add(self, task: Any) -> None:
        if task.get_loop() is self._loop:
            super().add(task)


Render = Callable[..., Graph]
Snapshot = Callable[[str, Any], None]


@pytest.fixture
def recorder() -> Callable[[], _Recorder]:
    """What answers the program; a folder of tests may have its own."""
    return _Recorder


@pytest.fixture
def render(recorder: Callable[[], _Recorder]) -> Iterator[Render]:
    """``render(program, preview=False, stack="local")``: the graph that ``program`` registers."""
    loops: list[asyncio.AbstractEventLoop] = []

    def run(program: Callable[[], None], *, preview: bool = False, stack: str = "local") -> Graph:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        asyncio.set_event_loop(loop)
        answering = recorder()
        monitor = _Monitor(answering)
        pulumi_mocks.set_mocks(
            answering,
            project="terrace",
            stack=stack,
            preview=preview,
            monitor=monitor,
            organization="organization",
        )
        # A test that made an Output outside of a program left it here, of a loop that is closed.
        _forget()
        pulumi_settings.SETTINGS.outputs = _OutputsOf(loop)
        outputs: dict[str, Any] = {}

        async def body() -> None:
            await pulumi_stack.run_pulumi_func(lambda: _in_stack(program, outputs))

        try:
            loop.run_until_complete(body())
        finally:
            _end(loop)
        resources = [
            Resource(
                type=args.typ,
                name=args.name,
                parent=monitor.parents.get(key, ""),
                inputs=_integers(args.inputs),
                provider=(args.provider or "").split("::")[-2:-1][0] if args.provider else "",
                custom=bool(args.custom),
                dependencies=monitor.dependencies.get(key, frozenset()),
                options=monitor.options.get(key, {}),
            )
            for key, args in answering.registered.items()
        ]
        return Graph(resources=resources, outputs=outputs)

    yield run
    for loop in loops:
        loop.close()
    asyncio.set_event_loop(None)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """What a refused program has begun is not waited for by the next one."""
    # Its futures are dropped with errors that nobody asked for. Left to itself, asyncio formats a
    # traceback for each whenever the collector comes by; inside ast.parse that ends the process.
    loop.set_exception_handler(lambda _loop, _context: None)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    _forget()


def _forget() -> None:
    """Nothing is under way in Pulumi's books."""
    pulumi_settings.SETTINGS.outputs.clear()
    pulumi_settings.SETTINGS.rpc_manager.clear()


def _integers(value: Any) -> Any:
    """The wire has one kind of number; Kubernetes' are integers."""
    if isinstance(value, dict):
        return {key: _integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_integers(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, pulumi.Resource):
        # pulumi-eks takes whole resources; their name says which.
        return f"resource {value.pulumi_resource_name}"
    return value


def _in_stack(program: Callable[[], None], outputs: dict[str, Any]) -> None:
    def body() -> None:
        program()

    pulumi_settings.set_root_resource(None)  # of the rendering before this one
    stack = pulumi_stack.Stack(body)
    for key, value in stack.outputs.items():
        pulumi.Output.from_input(value).apply(lambda v, key=key: outputs.__setitem__(key, v))


@pytest.fixture
def snapshot() -> Callable[[str, Any], None]:
    """Compares with ``snapshots/<name>.json``; ``RECORD_SNAPSHOTS=1`` records it anew."""

    def compare(name: str, value: Any) -> None:
        path = SNAPSHOTS / f"{name}.json"
        text = json.dumps(value, indent=1, sort_keys=True) + "\n"
        if os.environ.get("RECORD_SNAPSHOTS") == "1":
            path.write_text(text)
        assert path.exists(), f"no {path.name}; record it with RECORD_SNAPSHOTS=1"
        assert json.loads(path.read_text()) == json.loads(text), (
            f"the graph is not {path.name}; if that is meant, RECORD_SNAPSHOTS=1 pytest tests/graph"
        )

    return compare


StackProgram = Callable[..., Callable[[], None]]


@pytest.fixture
def stack_program(monkeypatch: pytest.MonkeyPatch) -> StackProgram:
    """``stack_program(name, **changes)``: the program with the committed settings of a stack.

    ``changes`` replace whole keys of the namespace ``terrace`` (``None`` takes one away).
    """
    monkeypatch.chdir(ROOT / "blueprints")  # as the language host does

    def configure(name: str, **changes: Any) -> Callable[[], None]:
        config = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"]
        config |= {f"terrace:{key}": value for key, value in changes.items()}
        as_pulumi_gives = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in config.items()
            if value is not None
        }
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(as_pulumi_gives))

        def program() -> None:
            runpy.run_path(str(ROOT / "blueprints" / "__main__.py"), run_name="__main__")

        return program

    return configure


@pytest.fixture
def substrate() -> Substrate:
    """What a local cluster publishes, with made-up images."""
    names = ("gateway", "translator", "model-simulator", "postgres", "prometheus")
    return local_substrate(
        LocalSubstrateFile(
            kubeconfig="/var/lib/terrace/kubeconfig",
            cluster_identifier="terrace-local-0a1b2c3d",
            images={
                name: f"terrace.local/{name}:0123456789abcdef"
                for name in (*names, "secret-bootstrap")
            },
        )
    )


@pytest.fixture
def stage_one(substrate: Substrate) -> Callable[[], None]:
    """The program of the stage-1 local stack."""

    def program() -> None:
        settings = Settings()
        governance = governance_text(settings, ROOT)
        export(settings, substrate, build(settings, substrate, governance))

    return program
