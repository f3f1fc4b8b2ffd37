"""Only the local stack lies in the machine's backend, and `down` deletes no other stack's state."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from terrace_cli import local_backend, platform_down
from terrace_cli.errors import CliError
from terrace_local import cluster

from .conftest import PLATFORM, SUBSTRATE, Invoke
from .fake_users_pulumi import UsersPulumiOnPath

URN = "urn:pulumi:{}::terrace::{}::{}"
STACK = {"type": "pulumi:pulumi:Stack", "custom": False}
PROVIDER = {"type": "pulumi:providers:aws", "custom": True}
BUCKET = {"type": "aws:s3/bucket:Bucket", "custom": True}
COMPONENT = {"type": "terrace:index:FoundationAws", "custom": False}
LOOKED_UP = {"type": "aws:s3/bucket:Bucket", "custom": True, "external": True}
Keep = Callable[..., Path]


@pytest.fixture
def keep(clone: Path, tmp_path: Path) -> Keep:
    """Write a stack's checkpoint as Pulumi's backend of files does."""
    del clone

    def keep(
        stack: str,
        *resources: dict[str, Any],
        project: str = "terrace",
        under_way: tuple[dict[str, Any], ...] = (),
        ending: str = ".json",
    ) -> Path:
        named = [
            one | {"urn": URN.format(stack, one["type"], number)}
            for number, one in enumerate([*resources, *under_way])
        ]
        latest = {
            "resources": named[: len(resources)],
            "pending_operations": [
                {"type": "creating", "resource": one} for one in named[len(resources) :]
            ],
        }
        text = json.dumps({"version": 3, "checkpoint": {"stack": stack, "latest": latest}})
        file = tmp_path / "state/pulumi/.pulumi/stacks" / project / f"{stack}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
        return file

    return keep


@pytest.fixture
def downs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    calls: list[bool] = []

    def down(*, keep_data: bool, **_: Any) -> cluster.DownReport:
        calls.append(keep_data)
        return cluster.DownReport()

    monkeypatch.setattr(cluster, "down", down)
    monkeypatch.setattr(cluster, "may_go_down", lambda **_: None)
    return calls


@pytest.mark.parametrize(
    "url", ["file://{state}/pulumi", "file://{state}", "file://{state}/pulumi/?no_tmp_dir=true"]
)
def test_a_cloud_stack_is_refused_the_machines_backend_before_anything_runs(
    invoke: Invoke,
    files: Path,
    pulumi: UsersPulumiOnPath,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
) -> None:
    state = files.parent / "state"
    monkeypatch.setenv("PULUMI_BACKEND_URL", url.format(state=state))
    for arguments in (("up", "--yes"), ("preview",)):
        outcome = invoke(*arguments, "--stack", "aws-a")
        assert outcome.code == 2
        assert f"cannot be kept in this machine's backend {url.format(state=state)}" in outcome.err
        assert "open a new shell" in outcome.err
    assert pulumi.calls() == []
    assert not state.exists()
    assert not (files / "check/asked.jsonl").exists()
    assert (files / "Pulumi.aws-a.yaml").read_text() == SUBSTRATE
    assert (files / "Pulumi.aws-a-platform.yaml").read_text() == PLATFORM


@pytest.mark.usefixtures("files")
def test_a_login_that_the_shell_overrides_is_told(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "credentials.json").write_text(json.dumps({"current": "file:///my/states"}))
    monkeypatch.setenv("PULUMI_HOME", str(home))
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/state/pulumi")
    said = invoke("preview", "--stack", "aws-a").err
    assert "The login to file:///my/states has no effect in this shell" in said


@pytest.mark.usefixtures("pulumi")
@pytest.mark.parametrize("of", ["login", "project"])
def test_a_login_to_the_machines_backend_is_refused_too(
    invoke: Invoke, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    url = f"file://{tmp_path}/state/pulumi"
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.setenv("PULUMI_CREDENTIALS_PATH", str(tmp_path))
    (tmp_path / "credentials.json").write_text(
        json.dumps({"current": url if of == "login" else "s3://states"})
    )
    assert invoke("preview", "--stack", "aws-a").code == (2 if of == "login" else 0)
    if of == "project":
        with (files / "Pulumi.yaml").open("a") as project:
            project.write(f"backend:\n  url: {url}\n")
    outcome = invoke("preview", "--stack", "aws-a")
    assert outcome.code == 2
    assert f"cannot be kept in this machine's backend {url}" in outcome.err
    assert "new shell" not in outcome.err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("url", ["s3://states", "file://~", "https://api.pulumi.com", ""])
def test_any_other_backend_is_the_users_own_affair(
    invoke: Invoke,
    pulumi: UsersPulumiOnPath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
) -> None:
    monkeypatch.setenv("PULUMI_CREDENTIALS_PATH", str(tmp_path))
    monkeypatch.setenv("PULUMI_BACKEND_URL", url)
    assert invoke("preview", "--stack", "aws-a").code == 0
    assert pulumi.calls()


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_down_refuses_to_delete_the_state_of_what_still_exists(
    invoke: Invoke, downs: list[bool], keep: Keep, ending: str
) -> None:
    keep("local", STACK, BUCKET)
    file = keep("aws-a", STACK, PROVIDER, BUCKET, BUCKET, ending=ending)
    file.with_name("aws-a.json.bak").write_text("{}")
    file.with_name("aws-a.json.attrs").write_text("{}")
    outcome = invoke("down", "--yes")
    assert outcome.code == 1
    assert "also keeps aws-a (2 resources)." in outcome.err
    assert "terrace down --stack aws-a" in outcome.err
    assert "will be deleted" not in outcome.err
    assert downs == []
    assert invoke("down", "--keep-data").code == 0
    assert downs == [True]


def test_what_is_under_way_unreadable_or_of_another_project_counts(keep: Keep, clone: Path) -> None:
    keep("starting", STACK, under_way=(BUCKET,))
    keep("broken", STACK).write_text('{"version": 3')
    keep("local", STACK, BUCKET, project="another")
    assert [str(one) for one in local_backend.other_stacks(clone)] == [
        "local (1 resource)",
        "broken (its state cannot be read)",
        "starting (1 resource)",
    ]


def test_a_stack_that_holds_nothing_outside_is_no_reason(
    invoke: Invoke, downs: list[bool], keep: Keep
) -> None:
    keep("local", STACK, BUCKET)
    keep("previewed")
    keep("destroyed", STACK, PROVIDER, COMPONENT, LOOKED_UP)
    assert invoke("down", "--yes").code == 0
    assert downs == [False]


def test_a_stack_that_came_up_while_the_question_stood_is_seen(
    invoke: Invoke, downs: list[bool], keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = platform_down.describe_loss

    def describe_loss(*arguments: Any, **named: Any) -> str:
        keep("aws-a", STACK, BUCKET)
        return real(*arguments, **named)

    monkeypatch.setattr(platform_down, "describe_loss", describe_loss)
    assert invoke("down", "--yes").code == CliError.exit_code
    assert downs == []
