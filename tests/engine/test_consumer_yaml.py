"""examples/yaml-consumer: the components from another Pulumi language, by the real engine."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Cloud, Engine, Run, Stack

from terrace_local.toolchain import ensure

ROOT = Path(__file__).resolve().parents[2]
# The stack of another project, whose outputs are numbers that are known late.
NUMBERS = {
    "type": "pulumi:pulumi:StackReference",
    "properties": {"name": "organization/trial/numbers"},
}
TOOLS = ("pulumi", "pulumi-language-python", "pulumi-language-yaml")


@pytest.fixture
def engine(tmp_path: Path, cloud: Cloud) -> Engine:
    """A machine with the YAML language host, and simulated AWS and Kubernetes."""
    plain = Engine(tmp_path / "machine", cloud)
    path = f"{ensure(1, only=TOOLS).bin_dir}{os.pathsep}{plain.environment['PATH']}"
    return Engine(plain.home, cloud, {"PATH": path})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The example where a clone has it, with a settings file that may be written to."""
    root = tmp_path / "clone"
    (root / "examples").mkdir(parents=True)
    shutil.copytree(ROOT / "examples/yaml-consumer", root / "examples/yaml-consumer")
    (root / "components").symlink_to(ROOT / "components")
    return root


def consumer(engine: Engine, clone: Path, **changes: Any) -> Stack:
    """The example's stack `dev`; a change names a resource and gives it other properties."""
    folder = clone / "examples/yaml-consumer"
    program = yaml.safe_load((folder / "Pulumi.yaml").read_text())
    for resource, properties in changes.items():
        program["resources"].setdefault(resource, dict(NUMBERS))["properties"] |= properties
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(program))
    engine.pulumi("stack", "init", "dev", folder=folder)
    return Stack(engine, folder, "dev")


def errors(run: Run) -> str:
    """What the run said is wrong, in one line."""
    return " ".join(run.must_fail().output.split())


def test_the_yaml_program_goes_up_stays_and_goes(engine: Engine, clone: Path) -> None:
    stack = consumer(engine, clone)
    first = stack.preview().must_work()
    assert {step.type for step in first.changes} >= {
        "terrace:index:AwsNetwork",
        "terrace:index:Observability",
        "aws:ec2/vpc:Vpc",
        "kubernetes:apps/v1:Deployment",
    }
    assert engine.cloud.items() == []
    stack.up().must_work()
    outputs = stack.outputs()
    assert outputs["prometheus"] == "http://prometheus.metrics:9090"
    [vpc] = engine.cloud.items("aws:ec2/vpc:Vpc")
    assert outputs["vpcId"] == vpc.id
    assert set(outputs["privateSubnetIds"]) <= {
        item.id for item in engine.cloud.items("aws:ec2/subnet:Subnet")
    }
    assert len(outputs["privateSubnetIds"]) == 3
    integers_are_integers(engine.cloud)
    stack.must_be_steady()
    stack.destroy().must_work()
    engine.cloud.must_be_empty()


def integers_are_integers(cloud: Cloud) -> None:
    """Over the wire 48 is 48.0, which in a command line or a configuration would be nonsense."""
    [deployment] = cloud.items("apps/v1:Deployment")
    assert "48h" in json.dumps(deployment.inputs)
    assert "48.0" not in json.dumps(deployment.inputs)
    [flow_logs] = cloud.items("aws:cloudwatch/logGroup:LogGroup")
    assert flow_logs.inputs["retentionInDays"] == 30
    [configuration] = cloud.items("core/v1:ConfigMap")
    assert "scrape_interval: 15s" in json.dumps(configuration.inputs)


def test_wrong_arguments_are_named_by_the_schema_alone(engine: Engine, clone: Path) -> None:
    stack = consumer(
        engine,
        clone,
        network={"natt": "shared"},
        agents={"layer": ["sandbox"]},
        prometheus={"retentionHours": "two days"},
    )
    told = errors(stack.preview())
    for word in ("natt", "layer", "retentionHours"):
        assert word in told


def test_an_argument_that_the_component_refuses_is_named(engine: Engine, clone: Path) -> None:
    told = errors(consumer(engine, clone, network={"flowLogRetentionDays": 31}).preview())
    named = told.partition("property flowLogRetentionDays with value")[2]
    assert "30" in named, told
    assert "Traceback" not in told
    assert ".py" not in told


def test_an_output_where_the_value_must_be_known_is_named(engine: Engine, clone: Path) -> None:
    """The SDK's own host would end in a TypeError of int()."""
    other = Stack.of_program(engine, "numbers", "import pulumi\npulumi.export('hours', 48)\n")
    other.up().must_work()
    stack = consumer(
        engine, clone, prometheus={"retentionHours": "${numbers.outputs.hours}"}, numbers={}
    )
    told = errors(stack.preview())
    assert "property retentionHours" in told
    assert "must be known when the program runs" in told
    assert "Traceback" not in told


def test_the_executable_shows_the_committed_schema(engine: Engine, tmp_path: Path) -> None:
    shown = json.loads(
        engine.pulumi(
            "package", "get-schema", str(ROOT / "components/pulumi-resource-terrace"),
            folder=tmp_path,
        )
    )  # fmt: skip
    committed = json.loads((ROOT / "components/schema.json").read_text())
    assert _described_once(shown["resources"]) == _described_once(committed["resources"])
    assert _described_once(shown["types"]) == _described_once(committed["types"])


def _described_once(schema: Any) -> Any:
    """Without what the engine leaves out: descriptions of items and values, empty lists."""
    if isinstance(schema, dict):
        return {
            key: _described_once(
                {k: v for k, v in value.items() if k != "description"}
                if key in ("items", "additionalProperties")
                else value
            )
            for key, value in schema.items()
            if value != []
        }
    return [_described_once(item) for item in schema] if isinstance(schema, list) else schema
