"""The check that `terrace up` runs first sees the settings as the program will see them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from terrace_blueprints.check_settings import check
from terrace_blueprints.governance_spec import GOVERNANCE_SPECS
from terrace_blueprints.settings import SettingsError
from terrace_common.governance import GovernanceError

ROOT = Path(__file__).resolve().parents[3]


def run_check(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "terrace_blueprints.check_settings", "Pulumi.x.yaml"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_committed_settings_are_right() -> None:
    document = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())
    done = run_check(json.dumps(document["config"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_wrong_settings_are_one_line_and_code_2() -> None:
    done = run_check('{"terrace:stgae": 1}')
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Pulumi.x.yaml: unknown key 'terrace:stgae' (did you mean")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("value", [1, "1"])
def test_a_scalar_is_what_its_text_is(value: Any) -> None:
    assert check({"terrace:stage": value}, Path("x")).stage == 1


def test_a_governance_spec_is_checked_too(tmp_path: Path) -> None:
    settings = {"terrace:governanceFile": "mine.yaml"}
    with pytest.raises(SettingsError, match=r"governanceFile: cannot read .*mine\.yaml"):
        check(settings, tmp_path / "Pulumi.x.yaml")
    (tmp_path / "mine.yaml").write_text("models: 3\n")
    with pytest.raises(GovernanceError, match=r"mine\.yaml"):
        check(settings, tmp_path / "Pulumi.x.yaml")
    good = (GOVERNANCE_SPECS / "governance.local.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(good)
    assert check(settings, tmp_path / "Pulumi.x.yaml").governance_file == "mine.yaml"


def test_what_is_encrypted_is_left_to_pulumi() -> None:
    assert check({"terrace:otlpEndpoint": {"secure": "v1:abc"}}, Path("x")).otlp_endpoint is None
    with pytest.raises(SettingsError, match="otlpEndpoint"):
        check({"terrace:otlpEndpoint": {"plain": "v1:abc"}}, Path("x"))


def test_the_default_spec_of_aws_is_of_one_region() -> None:
    platform = {
        "terrace:substrate": "aws",
        "terrace:part": "platform",
        "aws:region": "us-east-1",
    }
    file = ROOT / "Pulumi.x.yaml"
    assert check(platform, file).region == "us-east-1"
    with pytest.raises(SettingsError) as raised:
        check(platform | {"aws:region": "eu-west-1"}, file)
    message = str(raised.value)
    assert message.startswith("Pulumi.x.yaml: terrace:governanceFile: is required in eu-west-1")
    assert "governance.aws.yaml" in message


def test_a_substrate_has_no_governance() -> None:
    substrate = {
        "terrace:substrate": "aws",
        "terrace:part": "substrate",
        "aws:region": "eu-west-1",
        "terrace:aws": {"cluster": {"privateApi": True, "privateApiCidrs": ["10.20.0.0/16"]}},
    }
    assert check(substrate, ROOT / "Pulumi.x.yaml").part == "substrate"
