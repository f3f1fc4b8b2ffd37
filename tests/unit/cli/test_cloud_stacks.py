"""`up`, `preview` and `down` of two stacks, in the user's own Pulumi (a stand-in on PATH)."""

import json
import os
import sys
from pathlib import Path

import pytest

from .conftest import PLATFORM, STANDING, SUBSTRATE, Invoke
from .fake_users_pulumi import UsersPulumiOnPath

UP = ["up", "--yes", "--stack", "aws-a", "--non-interactive"]
UP_PLATFORM = ["up", "--yes", "--stack", "aws-a-platform", "--non-interactive"]
INIT = ["stack", "init", "aws-a", "--no-select", "--non-interactive"]
INIT_PLATFORM = ["stack", "init", "aws-a-platform", "--no-select", "--non-interactive"]


def asked(files: Path) -> list[list[str]]:
    return [json.loads(line) for line in (files / "check/asked.jsonl").read_text().splitlines()]


def test_up_brings_up_the_substrate_and_then_the_platform(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    outcome = invoke("up", "--stack", "aws-a", "--yes")
    assert outcome.code == 0, outcome.err
    assert pulumi.changes() == [INIT, INIT_PLATFORM, UP, UP_PLATFORM]
    assert "pulumi up aws-a (1 of 2, substrate)" in outcome.err
    assert "pulumi up aws-a-platform (2 of 2, platform)" in outcome.err
    assert "Stage 1 of aws-a stands" in outcome.err
    assert {call["cwd"] for call in pulumi.calls()} == {str(files)}
    assert (files / "Pulumi.aws-a.yaml").read_text() == SUBSTRATE


def test_both_files_are_checked_before_anything_runs(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    wrong = "Pulumi.aws-a-platform.yaml: terrace:aws: unknown key 'cidrr'"
    (files / "check/verdicts.json").write_text(json.dumps({"Pulumi.aws-a-platform.yaml": wrong}))
    for arguments in (("up", "--yes"), ("preview",)):
        outcome = invoke(*arguments, "--stack", "aws-a")
        assert outcome.code == 2
        assert wrong in outcome.err
    assert pulumi.calls() == []
    assert [name for name, _ in asked(files)][:2] == [
        "Pulumi.aws-a.yaml",
        "Pulumi.aws-a-platform.yaml",
    ]


def test_pulumis_environment_is_the_users_own(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    del files
    own = {
        "PULUMI_BACKEND_URL": "s3://states",
        "PULUMI_CONFIG_PASSPHRASE_FILE": "/secret/file",
        "PULUMI_ACCESS_TOKEN": "pul-0",
        "PULUMI_HOME": "/somewhere",
        "AWS_PROFILE": "team",
    }
    for name in [name for name in os.environ if name.startswith("PULUMI_")]:
        monkeypatch.delenv(name)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert invoke("up", "--stack", "aws-a", "--yes").code == 0
    for call in pulumi.calls():
        seen = call["environment"]
        assert {n: v for n, v in seen.items() if n.startswith("PULUMI_")} == {
            n: v for n, v in own.items() if n.startswith("PULUMI_")
        }
        assert seen["AWS_PROFILE"] == "team"
        assert "KUBECONFIG" not in seen or seen["KUBECONFIG"] == os.environ.get("KUBECONFIG")
    # The language host finds the Python that has the program's packages.
    assert pulumi.calls()[0]["environment"]["PATH"].split(os.pathsep)[0] == str(
        Path(sys.executable).parent
    )


def test_a_substrate_that_fails_stops_everything(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(stacks=STANDING, failing={"up aws-a": "error: creating EKS Cluster: Throttling"})
    outcome = invoke("up", "--stack", "aws-a", "--yes")
    assert outcome.code == 5
    assert "Throttling" in outcome.err
    assert "aws-a-platform was not started" in outcome.err
    assert "`terrace up --stack aws-a` again" in outcome.err
    assert pulumi.changes() == [UP]


def test_a_platform_that_fails_says_so_and_leaves_the_substrate(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(stacks=STANDING, failing={"up aws-a-platform": "error: image pull"})
    outcome = invoke("up", "--stack", "aws-a", "--yes")
    assert outcome.code == 5
    assert "`pulumi up` of aws-a-platform failed" in outcome.err
    assert "not started" not in outcome.err
    assert "`terrace up --stack aws-a` again" in outcome.err


def test_a_stage_is_set_in_both_files_once_both_were_checked_with_it(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    for file in ("Pulumi.aws-a.yaml", "Pulumi.aws-a-platform.yaml"):
        path = files / file
        path.write_text(path.read_text().replace('stage: "1"', 'stage: "2"'))
    pulumi.state(stacks=STANDING)
    assert invoke("up", "--stack", "aws-a", "--stage", "1", "--yes").code == 0
    assert asked(files) == [["Pulumi.aws-a.yaml", "1"], ["Pulumi.aws-a-platform.yaml", "1"]]
    assert pulumi.changes() == [
        ["config", "set", "--stack", "aws-a", "terrace:stage", "1"],
        ["config", "set", "--stack", "aws-a-platform", "terrace:stage", "1"],
        UP,
        UP_PLATFORM,
    ]
    assert (files / "Pulumi.aws-a.yaml").read_text() == SUBSTRATE


def test_a_stage_that_is_there_is_not_written_and_a_wrong_one_runs_nothing(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(stacks=STANDING)
    assert invoke("up", "--stack", "aws-a", "--stage", "1", "--yes").code == 0
    assert pulumi.changes() == [UP, UP_PLATFORM]
    before = len(pulumi.calls())
    for stage, said in (("2", "not built yet"), ("7", "Stages are 1, 2 and 3")):
        outcome = invoke("up", "--stack", "aws-a", "--stage", stage, "--yes")
        assert outcome.code == 2
        assert said in outcome.err
    assert len(pulumi.calls()) == before


def test_two_files_with_different_stages_are_refused(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    (files / "Pulumi.aws-a-platform.yaml").write_text(PLATFORM.replace('"1"', '"2"'))
    outcome = invoke("up", "--stack", "aws-a", "--yes")
    assert outcome.code == 2
    assert "1 in Pulumi.aws-a.yaml, 2 in Pulumi.aws-a-platform.yaml" in outcome.err
    assert pulumi.calls() == []


def test_before_its_first_up_the_platform_says_that_it_needs_images(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    assert "Images into ECR" in invoke("up", "--stack", "aws-a", "--yes").err
    up = {"gateway_url": "https://gateway.example.com"}
    pulumi.state(stacks={**STANDING, "aws-a-platform": up}, outputs={"aws-a-platform": up})
    assert "Images into ECR" not in invoke("up", "--stack", "aws-a", "--yes").err


def test_the_platform_is_previewed_only_once_the_substrate_stands(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    first = invoke("preview", "--stack", "aws-a")
    assert first.code == 0
    assert "can only be previewed once the substrate stands" in first.err
    steps = ("`pulumi up --stack aws-a`", "Images into ECR", "`terrace up --stack aws-a`")
    places = [first.err.index(step) for step in steps]
    assert places == sorted(places)
    substrate = ["preview", "--stack", "aws-a", "--non-interactive"]
    # Pulumi cannot preview without a stack; one that is not previewed is not made.
    assert pulumi.changes() == [INIT, substrate]
    pulumi.state(stacks=STANDING)
    second = invoke("preview", "--stack", "aws-a")
    assert second.code == 0
    assert "only be previewed" not in second.err
    platform = ["preview", "--stack", "aws-a-platform", "--non-interactive"]
    assert pulumi.changes()[2:] == [substrate, platform]
    pulumi.state(stacks={"aws-a": STANDING["aws-a"]})
    assert invoke("preview", "--stack", "aws-a").code == 0
    assert pulumi.changes()[4:] == [substrate, INIT_PLATFORM, platform]


def test_a_preview_that_fails_is_code_1(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(stacks=STANDING, failing={"preview aws-a": "error: no credentials"})
    outcome = invoke("preview", "--stack", "aws-a")
    assert outcome.code == 1
    assert "nothing was changed" in outcome.err


def test_policy_packs_are_handed_to_every_stack(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    pulumi.state(stacks=STANDING)
    pack = str(files / "check")
    assert invoke("preview", "--stack", "aws-a", "--policy-pack", pack).code == 0
    assert invoke("up", "--stack", "aws-a", "--policy-pack", pack, "--yes").code == 0
    assert len(pulumi.changes()) == 4
    for argv in pulumi.changes():
        assert argv[argv.index("--policy-pack") + 1] == pack
    asked_before = len(pulumi.calls())
    outcome = invoke("preview", "--stack", "aws-a", "--policy-pack", str(files / "gone"))
    assert outcome.code == 2
    assert "does not exist" in outcome.err
    assert len(pulumi.calls()) == asked_before


def test_down_goes_the_other_way(invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath) -> None:
    (files / "check/verdicts.json").write_text('{"Pulumi.aws-a.yaml": "wrong by now"}')
    pulumi.state(stacks=STANDING)
    outcome = invoke("down", "--stack", "aws-a", "--yes")
    assert outcome.code == 0, outcome.err
    assert [argv[0] + argv[3] for argv in pulumi.changes()] == [
        "destroyaws-a-platform",
        "destroyaws-a",
    ]
    assert "stay in Pulumi's backend" in outcome.err


def test_a_platform_that_is_not_gone_keeps_its_substrate(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(stacks=STANDING, failing={"destroy aws-a-platform": "error: finalizer"})
    outcome = invoke("down", "--stack", "aws-a", "--yes")
    assert outcome.code == 1
    assert "aws-a was not touched" in outcome.err
    assert len(pulumi.changes()) == 1


def test_down_of_what_is_not_there_is_code_6_and_of_a_half_is_that_half(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(stacks={"other": {}})
    outcome = invoke("down", "--stack", "aws-a", "--yes")
    assert outcome.code == 6
    assert "it has: other" in outcome.err
    pulumi.state(stacks={"aws-a": {}}, prefix="acme/")
    assert invoke("down", "--stack", "aws-a", "--yes").code == 0
    assert [argv[3] for argv in pulumi.changes()] == ["aws-a"]


def test_an_existing_cluster_is_one_stack(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    (files / "Pulumi.mine.yaml").write_text("config:\n  terrace:substrate: existing\n")
    outcome = invoke("up", "--stack", "mine", "--yes")
    assert outcome.code == 0, outcome.err
    assert "pulumi up mine (1 of 1)" in outcome.err
    assert [argv[0] for argv in pulumi.changes()] == ["stack", "up"]
