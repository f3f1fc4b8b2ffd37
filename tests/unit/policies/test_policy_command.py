"""`terrace policy ...`: output, exit codes, and what is said of wrong input."""

import json
from datetime import date
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from terrace_cli.commands.policy import policy_command
from terrace_cli.errors import UsageError
from terrace_cli.main import terrace
from terrace_policies.book import rules

KEY = {
    "urn": "urn:pulumi:prod::terrace::aws:kms/key:Key::signing",
    "type": "aws:kms/key:Key",
    "inputs": {"enableKeyRotation": False},
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERRACE_POLICY_CONFIG", raising=False)


def run(*arguments: str, text: str | None = None) -> tuple[int, str]:
    """Exit code (what the command returns, as `terrace` uses it) and output."""
    result = CliRunner().invoke(policy_command, arguments, input=text, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value or 0, result.output


def state(**inputs: object) -> str:
    return json.dumps({"deployment": {"resources": [{**KEY, "inputs": inputs}]}})


def test_it_is_a_command_of_terrace() -> None:
    result = CliRunner().invoke(terrace, ["policy", "--help"])
    assert result.exit_code == 0
    for name in ("list", "explain", "check", "manifests"):
        assert name in result.output


def test_list_has_every_rule() -> None:
    code, output = run("list")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()[1:]] == [r.id for r in rules()]
    _, output = run("list", "--json")
    document = json.loads(output)
    assert [item["id"] for item in document] == [rule.id for rule in rules()]
    assert all(item["references"] and item["remediation"] for item in document)


def test_explain_one_and_refuse_another() -> None:
    assert "EKS API endpoint" in run("explain", "eks-endpoint-not-open")[1]
    with pytest.raises(UsageError, match="no rule 'eks'"):
        run("explain", "eks")


def test_check_a_file_and_stdin(tmp_path: Path) -> None:
    code, output = run("check", "--state", "-", text=state(enableKeyRotation=False))
    assert code == 1
    assert "mandatory key-rotated: signing: enableKeyRotation: must be true" in output
    assert f"1 resource, {len(rules())} rules: 1 violation, 0 advisory, 0 unchecked" in output
    (tmp_path / "state.json").write_text(state(enableKeyRotation=True))
    code, output = run("check", "--state", "state.json")
    assert code == 0
    assert "0 violations" in output


def test_check_speaks_json() -> None:
    code, output = run("check", "--state", "-", "--json", text=state())
    document = json.loads(output)
    assert code == 1
    (violation,) = document["violations"]
    assert violation["rule"] == "key-rotated"
    assert violation["urn"] == KEY["urn"]
    assert violation["property"] == "enableKeyRotation"
    assert (document["resources"], document["advisories"], document["unchecked"]) == (1, [], [])


def test_check_uses_the_configuration(tmp_path: Path) -> None:
    entry = {"rule": "key-rotated", "resource": "*::signing", "reason": "why"}
    document = {"version": 1, "exemptions": [{**entry, "expires": date(2020, 1, 1)}]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    code, output = run("check", "--state", "-", "--config", "mine.yaml", text=state())
    assert code == 1
    assert "mandatory policy-configuration: mine.yaml: exemptions[0].expires: expired" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--state", "absent.json"), "absent.json: No such file or directory"),
        (("--state", "-"), "stdin: not JSON"),
    ],
)
def test_wrong_input_is_said(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run("check", *arguments, text="no")


def test_manifests_are_yaml_for_kubectl() -> None:
    code, output = run("manifests", "--node-port", "30400")
    assert code == 0
    documents = list(yaml.safe_load_all(output))
    assert {d["apiVersion"] for d in documents} == {"admissionregistration.k8s.io/v1"}
    assert "30400" in output


def test_manifests_of_a_wrong_configuration_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 7\n")
    with pytest.raises(UsageError, match=r"mine\.yaml: version: must be 1"):
        run("manifests", "--config", "mine.yaml")
