"""examples/ci: the workflow's own commands, in a fresh clone, against the simulated cloud.

Steps by `uses:` are simulated: what each would have brought is there (see SIMULATED).
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fresh_checkout import check_out, machine, shell
from harness import Cloud, Engine
from harness.accounts import with_zone
from harness.engine import PASSPHRASE

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "examples/ci/terrace-preview.yml"
STACK = "aws-stage1"
# Action -> what stands in for it here. An action that is not listed fails the test.
SIMULATED = {
    "actions/checkout": "a copy of what git would check out",
    "actions/setup-python": "the Python that runs the tests",
    "pulumi/actions": "the CLI of the toolchain",
    "aws-actions/configure-aws-credentials": "the simulated account",
}


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    return yaml.safe_load(WORKFLOW.read_text())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the checkout action leaves."""
    return check_out(tmp_path_factory.mktemp("ci") / "terrace")


def expressions() -> set[str]:
    """The `${{ ... }}` of the workflow."""
    return set(re.findall(r"\$\{\{ *([\w.]+) *\}\}", WORKFLOW.read_text()))


def environment(workflow: dict[str, Any], engine: Engine, scratch: Path) -> dict[str, str]:
    """The job's environment: the runner's own, then the workflow's `env:` with its values."""
    given = {
        "vars.AWS_REGION": "us-east-1",
        "vars.PULUMI_BACKEND_URL": engine.environment["PULUMI_BACKEND_URL"],
        "vars.TERRACE_STACK": STACK,
        "secrets.PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
    }
    filled = {
        name: re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda match: given[match[1]], str(value))
        for name, value in workflow["env"].items()
    }
    return {**machine(engine, scratch), "CI": "true", "RUNNER_TEMP": str(scratch), **filled}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return workflow["jobs"]["preview"]["steps"]


def run_steps(
    workflow: dict[str, Any], checkout: Path, environment: dict[str, str]
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Every `run:` as the runner runs it, to the first that fails."""
    done: dict[str, subprocess.CompletedProcess[str]] = {}
    for step in steps(workflow):
        if "run" not in step:
            continue
        done[step["name"]] = shell(step["run"], checkout, environment)
        if done[step["name"]].returncode:
            break
    return done


def test_only_known_actions_are_used_each_by_version(workflow: dict[str, Any]) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert {action.partition("@")[0] for action in used} == set(SIMULATED)
    assert all(re.fullmatch(r"[\w/-]+@v\d+", action) for action in used)


def test_it_names_no_secret_but_the_passphrase_and_may_only_read(workflow: dict[str, Any]) -> None:
    assert {e for e in expressions() if e.startswith("secrets.")} == {
        "secrets.PULUMI_CONFIG_PASSPHRASE"
    }
    assert workflow["permissions"] == {"id-token": "write", "contents": "read"}
    commands = " ".join(step.get("run", "") for step in steps(workflow))
    assert not re.search(r"\b(up|destroy|down|refresh)\b", commands)


def test_its_cli_is_the_toolchains(workflow: dict[str, Any]) -> None:
    [action] = [s for s in steps(workflow) if s.get("uses", "").startswith("pulumi/actions")]
    manifest = (ROOT / "local/terrace_local/toolchain/manifest.toml").read_text()
    assert f'name = "pulumi"\nversion = "{action["with"]["pulumi-version"]}"' in manifest


def test_its_commands_run_in_a_fresh_checkout_and_change_nothing(
    workflow: dict[str, Any], checkout: Path, engine: Engine, cloud: Cloud, tmp_path: Path
) -> None:
    with_zone(cloud)
    before = cloud.items()
    done = run_steps(workflow, checkout, environment(workflow, engine, tmp_path))
    for name, step in done.items():
        assert step.returncode == 0, f"{name}:\n{step.stdout}"
    assert list(done) == [step["name"] for step in steps(workflow) if "run" in step]
    preview = done["Preview of both stacks, with the policies"].stdout
    assert "aws:eks:NodeGroup" in preview
    assert "can only be previewed once the substrate stands" in preview
    assert cloud.items() == before


def test_a_change_that_breaks_a_policy_fails_the_job(
    workflow: dict[str, Any], checkout: Path, engine: Engine, cloud: Cloud, tmp_path: Path
) -> None:
    with_zone(cloud)
    account = cloud.items()
    settings = checkout / f"Pulumi.{STACK}.yaml"
    before = settings.read_text()
    assert "backupDays: 7" in before
    settings.write_text(before.replace("backupDays: 7", "backupDays: 1"))
    try:
        done = run_steps(workflow, checkout, environment(workflow, engine, tmp_path))
    finally:
        settings.write_text(before)
    name, failed = list(done.items())[-1]
    assert name == "Preview of both stacks, with the policies"
    assert failed.returncode != 0, failed.stdout
    assert "backup" in failed.stdout
    assert cloud.items() == account
