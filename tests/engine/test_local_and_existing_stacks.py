"""The stacks that bring no cloud of their own, on somebody's simulated cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Cloud, Engine, Stack

IMAGES = (
    "gateway",
    "translator",
    "model-simulator",
    "postgres",
    "prometheus",
    "secret-bootstrap",
)
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "my-cluster",
    "contexts": [{"name": "my-cluster", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.10:6443"}}],
    "users": [{"name": "u", "user": {}}],
}


def substrate_file(engine: Engine) -> Path:
    """What the embedded cluster publishes of itself."""
    kubeconfig = engine.home / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    substrate = engine.home / "substrate.json"
    images = {name: f"terrace.local/{name}:0123456789abcdef" for name in IMAGES}
    content = {
        "kubeconfig": str(kubeconfig),
        "cluster_identifier": "terrace-local-0a1b2c3d",
        "images": images,
    }
    substrate.write_text(json.dumps(content))
    return substrate


def local_stack(engine: Engine) -> Stack:
    """Stack `local`, with a substrate file as the embedded cluster writes it."""
    substrate = substrate_file(engine)

    def change(config: dict[str, Any]) -> None:
        config["terrace:substrateFile"] = str(substrate)

    return Stack.of_terrace(engine, "local", change=change)


def existing_stack(engine: Engine) -> Stack:
    """Stack `existing`, with the kubeconfig that it names."""
    kubeconfig = engine.home / ".kube" / "config"
    kubeconfig.parent.mkdir()
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    return Stack.of_terrace(engine, "existing")


def goes_up_and_comes_down(stack: Stack, cloud: Cloud, golden: Callable[..., None]) -> None:
    stack.up().must_work()
    stack.must_be_steady()
    assert not stack.refresh().must_work().changes
    golden(stack)
    stack.destroy().must_work()
    cloud.must_be_empty()


def test_local(engine: Engine, cloud: Cloud, golden: Callable[..., None]) -> None:
    goes_up_and_comes_down(local_stack(engine), cloud, golden)


def test_existing(engine: Engine, cloud: Cloud, golden: Callable[..., None]) -> None:
    """It touches nothing that was in the cluster before."""
    goes_up_and_comes_down(existing_stack(engine), cloud, golden)


def test_the_namespace_of_somebody_else_is_refused(engine: Engine, cloud: Cloud) -> None:
    """A namespace of that name that this stack did not make is neither taken over nor deleted."""
    stack = existing_stack(engine)
    stack.up().must_work()
    another = Stack.of_terrace(
        Engine(engine.home.parent / "another", cloud, {"HOME": str(engine.home)}), "existing"
    )
    before = cloud.counts()
    assert "AlreadyExists" in another.up().must_fail().errors
    another.destroy().must_work()
    assert cloud.counts() == before
