"""The components as Python packages in somebody else's project, by the real engine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Cloud, Engine, Stack

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "gateway-on-your-cluster"
UV = Path(sys.executable).with_name("uv")
PACKAGES = ("services/common", "components")

NETWORK = """
import pulumi
from terrace_components import AwsNetwork

network = AwsNetwork("office", {"cidr": "10.40.0.0/16", "zone_count": 2, "nat": "none"})
pulumi.export("vpc", network.vpc_id)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two wheels that a consumer needs, built without an index."""
    folder = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder),
            cwd=ROOT / package)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def python(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment: what the lock says, and the wheels; no clone."""
    venv = tmp_path_factory.mktemp("consumer") / "venv"
    run(UV, "venv", "-q", "--python", sys.executable, str(venv))
    python = venv / "bin/python"
    install = (UV, "pip", "install", "-q", "--python", str(python))
    run(*install, "--require-hashes", "-r", str(ROOT / "requirements/infra.lock"))
    run(*install, "--no-deps", "--no-index", "--find-links", str(wheels),
        "terrace-common", "terrace-components")  # fmt: skip
    return python


@pytest.fixture
def engine(tmp_path: Path, cloud: Cloud, python: Path) -> Engine:
    """A machine whose Python is the consumer's."""
    plain = Engine(tmp_path / "machine", cloud)
    path = f"{python.parent}{os.pathsep}{plain.environment['PATH']}"
    return Engine(plain.home, cloud, {"PATH": path})


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def example(engine: Engine, tmp_path: Path) -> Stack:
    """The example in a project of its own, far from the clone."""
    folder = tmp_path / "their-project"
    shutil.copytree(EXAMPLE, folder)
    engine.pulumi("stack", "init", "dev", folder=folder)
    return Stack(engine, folder, "dev")


def test_the_wheels_are_all_of_terrace_that_a_consumer_has(python: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, json, terrace_common, terrace_components\n"
        "names = ['terrace_blueprints', 'terrace_cli', 'terrace_local', 'terrace_policies']\n"
        "print(json.dumps([terrace_common.__file__, terrace_components.__file__,"
        " [n for n in names if u.find_spec(n)]]))"
    )
    common, components, others = json.loads(run(python, "-P", "-c", code, cwd=tmp_path))
    assert Path(common).is_relative_to(python.parents[1])
    assert Path(components).is_relative_to(python.parents[1])
    assert others == []


def test_the_example_previews_goes_up_and_comes_down(
    engine: Engine, tmp_path: Path, cloud: Cloud
) -> None:
    stack = example(engine, tmp_path)
    planned = {step.type for step in stack.preview().must_work().changes}
    assert {"terrace:index:FoundationLocal", "terrace:index:GovernanceGateway"} <= planned
    assert cloud.items() == []

    going_up = stack.start("up", "--yes", "--skip-preview")
    going_up.wait_until(lambda: has_namespace(cloud, "terrace-gateway"))
    give_the_providers_key(engine)
    going_up.wait().must_work()
    assert stack.outputs() == {"gateway": "http://gateway.terrace-gateway:8080"}
    [gateway] = [
        item for item in cloud.items("apps/v1:StatefulSet") if item.id.endswith("/gateway")
    ]
    images = {c["image"] for c in gateway.inputs["spec"]["template"]["spec"]["containers"]}
    shipped = yaml.safe_load((EXAMPLE / "Pulumi.dev.yaml").read_text())["config"]
    assert images <= set(shipped["gateway-on-your-cluster:images"].values())
    stack.must_be_steady()
    stack.destroy().must_work()


def test_a_part_for_aws_is_taken_alone(engine: Engine, cloud: Cloud) -> None:
    config: dict[str, Any] = {"aws:region": "eu-central-1"}
    stack = Stack.of_program(engine, "network", NETWORK, **config)
    stack.up().must_work()
    [vpc] = cloud.items("aws:ec2/vpc:Vpc")
    assert stack.outputs() == {"vpc": vpc.id}
    assert len(cloud.items("aws:ec2/subnet:Subnet")) == 2
    assert cloud.items("aws:ec2/natGateway:NatGateway") == []
    stack.destroy().must_work()
    cloud.must_be_empty()


def has_namespace(cloud: Cloud, name: str) -> bool:
    return any(item.inputs["metadata"]["name"] == name for item in cloud.items("v1:Namespace"))


def give_the_providers_key(engine: Engine) -> None:
    """What the example's README does with kubectl, here as a stack of the same cluster."""
    source = (
        "import pulumi_kubernetes as k8s\n"
        "k8s.core.v1.Secret('key', metadata={'name': 'provider-credentials',"
        " 'namespace': 'terrace-gateway'}, string_data={'openai-api-key': 'sk-trial'})\n"
    )
    Stack.of_program(engine, "key", source).up().must_work()
