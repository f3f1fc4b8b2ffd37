"""What `--stack` refuses, and what it says: locks, names, settings, a machine without Pulumi."""

import json
from pathlib import Path

import pytest

from terrace_cli import stack_pair, users_pulumi
from terrace_cli.errors import UsageError

from .conftest import PLATFORM, STANDING, SUBSTRATE, Invoke
from .fake_users_pulumi import UsersPulumiOnPath

UP_PLATFORM = ["up", "--yes", "--stack", "aws-a-platform", "--non-interactive"]


def test_a_region_of_its_own_for_the_platform_is_refused(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    for name, region in (("aws-a", "us-east-1"), ("aws-a-platform", "eu-west-1")):
        file = files / f"Pulumi.{name}.yaml"
        file.write_text(f"{file.read_text()}  aws:region: {region}\n")
    for arguments in (("up", "--yes"), ("preview",)):
        outcome = invoke(*arguments, "--stack", "aws-a")
        assert outcome.code == 2
        told = "us-east-1 in Pulumi.aws-a.yaml, eu-west-1 in Pulumi.aws-a-platform.yaml"
        assert told in outcome.err
    assert pulumi.calls() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("terrace:substrate:", "terrace:substrat:"), ("terrace:part:", "terrace:prat:")],
)
@pytest.mark.parametrize("command", ["up", "preview", "down"])
@pytest.mark.usefixtures("pulumi")
def test_a_misspelt_key_that_decides_what_the_stack_is_is_named(
    invoke: Invoke, files: Path, command: str, old: str, new: str
) -> None:
    file = files / "Pulumi.aws-a.yaml"
    file.write_text(SUBSTRATE.replace(old, new))
    wrong = f"Pulumi.aws-a.yaml: unknown key {new}"
    (files / "check/verdicts.json").write_text(json.dumps({file.name: wrong}))
    outcome = invoke(command, "--stack", "aws-a", *([] if command == "preview" else ["--yes"]))
    assert outcome.code == 2
    assert wrong in outcome.err


def test_a_locked_stack_is_left_as_it_is_and_its_holder_is_named(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    texts = {}
    for file in (files / "Pulumi.aws-a.yaml", files / "Pulumi.aws-a-platform.yaml"):
        file.write_text(file.read_text().replace('stage: "1"', 'stage: "2"'))
        texts[file] = file.read_text()
    pulumi.state(stacks=STANDING, locked=["aws-a"])
    outcome = invoke("up", "--stack", "aws-a", "--stage", "1", "--yes")
    assert outcome.code == 4
    assert "root@elsewhere (process 4711), since 2026-11-30T10:00:00Z" in outcome.err
    assert "pulumi cancel --stack aws-a" in outcome.err
    assert "Nothing was changed in aws-a" in outcome.err
    assert "before that" not in outcome.err
    assert UP_PLATFORM not in pulumi.changes()
    assert not any("cancel" in argv for argv in pulumi.changes())
    assert {file: file.read_text() for file in texts} == texts


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("command", "locked", "earlier"),
    [
        ("up", "aws-a-platform", "aws-a was brought up before that"),
        ("down", "aws-a", "aws-a-platform was destroyed before that"),
    ],
)
def test_a_lock_of_the_second_stack_does_not_hide_what_was_done_to_the_first(
    invoke: Invoke, pulumi: UsersPulumiOnPath, command: str, locked: str, earlier: str
) -> None:
    pulumi.state(stacks=STANDING, locked=[locked])
    outcome = invoke(command, "--stack", "aws-a", "--yes")
    assert outcome.code == 4
    assert f"Nothing was changed in {locked}." in outcome.err
    assert "Nothing was changed." not in outcome.err
    assert earlier in outcome.err


def test_a_lock_that_pulumi_tells_nothing_of_still_says_how_to_go_on() -> None:
    said = users_pulumi.describe_lock(
        "x", "[409] Conflict: Another update is currently in progress."
    )
    assert "does not say by whom" in said
    assert "pulumi cancel --stack x" in said


@pytest.mark.parametrize("command", ["up", "down"])
def test_without_a_terminal_and_without_yes_nothing_runs(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath, command: str
) -> None:
    del files
    outcome = invoke(command, "--stack", "aws-a")
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert pulumi.calls() == []


def test_no_login_is_said_in_pulumis_words(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    pulumi.state(no_login=True)
    outcome = invoke("up", "--stack", "aws-a", "--yes")
    assert outcome.code == 2
    assert "PULUMI_ACCESS_TOKEN must be set for login" in outcome.err


def test_keep_data_is_for_the_local_stack(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath
) -> None:
    del files
    outcome = invoke("down", "--stack", "aws-a", "--yes", "--keep-data")
    assert outcome.code == 2
    assert "--keep-data is for the local stack" in outcome.err
    assert pulumi.calls() == []


def test_without_any_pulumi_the_way_to_one_is_said(
    invoke: Invoke, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del files
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TERRACE_CACHE_DIR", str(tmp_path / "empty-cache"))
    outcome = invoke("up", "--stack", "aws-a", "--yes")
    assert outcome.code == 3
    assert "ensure 1 pulumi pulumi-language-python" in outcome.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "Stacks with settings there: aws-a, aws-a-platform, local"),
        ("aws-a-platform", "--stack aws-a."),
        ("../x", "is no stack name"),
        ("", "is no stack name"),
        ("here", "leave --stack out"),
    ],
)
def test_a_name_that_is_no_stack_is_refused(
    invoke: Invoke, files: Path, pulumi: UsersPulumiOnPath, name: str, said: str
) -> None:
    if name == "here":
        (files / "Pulumi.here.yaml").write_text("config: {}\n")
    for command in ("up", "preview", "down"):
        outcome = invoke(command, "--stack", name, *([] if command == "preview" else ["--yes"]))
        assert outcome.code == 2
        assert said in outcome.err
    assert pulumi.calls() == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("part: platform", "part: all", "terrace:part is 'all'; as the platform on aws-a"),
        ("Stack: aws-a", "Stack: aws-b", "terrace:substrateStack is 'aws-b'"),
        ("substrate: aws", "substrate: existing", "terrace:substrate is 'existing'"),
    ],
)
def test_two_files_that_do_not_belong_together_are_refused(
    files: Path, old: str, new: str, said: str
) -> None:
    (files / "Pulumi.aws-a-platform.yaml").write_text(PLATFORM.replace(old, new))
    with pytest.raises(UsageError, match="must be") as caught:
        stack_pair.read_stacks(files, "aws-a")
    assert said in str(caught.value)
