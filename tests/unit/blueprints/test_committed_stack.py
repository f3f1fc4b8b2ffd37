"""The files that make `pulumi up` by hand work: they are valid, and hold no secret."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from terrace_blueprints.check_settings import check
from terrace_blueprints.governance_spec import GOVERNANCE_SPECS
from terrace_blueprints.settings import load_settings
from terrace_common.governance import load_governance

ROOT = Path(__file__).resolve().parents[3]
STACK = ROOT / "Pulumi.local.yaml"
STACKS = sorted(path.name for path in ROOT.glob("Pulumi.*.yaml"))
SUBSTRATES = ("aws-stage1", "aws-private", "aws-existing-vpc")


def config_of(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())["config"]


def test_the_stacks_are_those_of_the_documentation() -> None:
    assert sorted(name.removeprefix("Pulumi.").removesuffix(".yaml") for name in STACKS) == [
        "aws-existing-vpc", "aws-existing-vpc-platform", "aws-private", "aws-private-platform",
        "aws-stage1", "aws-stage1-platform", "existing", "local",
    ]  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_every_stack_is_valid(name: str) -> None:
    assert check(config_of(name), ROOT / name).stage == 1


@pytest.mark.parametrize("name", [n for n in STACKS if n != STACK.name])
def test_who_keeps_the_secrets_is_the_users_to_say(name: str) -> None:
    """A salt or an encrypted key belongs to one person's passphrase or KMS key."""
    text = (ROOT / name).read_text()
    assert set(yaml.safe_load(text)) == {"config"}
    assert "secure:" not in text


@pytest.mark.parametrize("name", STACKS)
def test_only_names_that_are_nobodys(name: str) -> None:
    text = (ROOT / name).read_text()
    assert set(re.findall(r"(?<![\d-])\d{12}(?!\d)", text)) <= {"123456789012"}
    hosts = re.findall(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:com|org|net|io)\b", text)
    assert all(h.endswith(("example.com", "amazonaws.com", "aws.github.io")) for h in hosts), hosts


@pytest.mark.parametrize("name", SUBSTRATES)
def test_the_two_stacks_of_a_platform_belong_together(name: str) -> None:
    below, above = config_of(f"Pulumi.{name}.yaml"), config_of(f"Pulumi.{name}-platform.yaml")
    assert above["terrace:substrateStack"] == name
    for key in ("aws:region", "terrace:stage", "terrace:substrate"):
        assert below[key] == above[key]
    assert (below["terrace:part"], above["terrace:part"]) == ("substrate", "platform")


def test_the_local_stack_is_stage_one_on_this_machine() -> None:
    settings = load_settings(yaml.safe_load(STACK.read_text())["config"], STACK.name)
    assert (settings.stage, settings.substrate) == (1, "local")


def test_the_local_stack_holds_no_secret() -> None:
    stack = yaml.safe_load(STACK.read_text())
    assert set(stack) == {"encryptionsalt", "config"}
    assert "secure:" not in STACK.read_text()


def test_the_project_points_at_the_program() -> None:
    project = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    assert project["name"] == "terrace"
    assert (ROOT / project["main"] / "__main__.py").exists()


@pytest.mark.parametrize("substrate", ["local", "aws"])
def test_a_default_governance_spec_is_valid(substrate: str) -> None:
    path = GOVERNANCE_SPECS / f"governance.{substrate}.yaml"
    assert load_governance(path.read_text(), path.name).models


def test_the_default_spec_of_aws_needs_no_key_and_keeps_its_code_working() -> None:
    path = GOVERNANCE_SPECS / "governance.aws.yaml"
    spec = load_governance(path.read_text(), path.name)
    for model in spec.models:
        provider = spec.provider_of(model)
        assert provider.kind == "bedrock"
        assert provider.credentials == "ambient"
        assert spec.find_model(model.upstream_model) is model  # code that names Bedrock's ids
        assert model.price.output_micro_usd_per_mtok >= model.price.input_micro_usd_per_mtok > 0
