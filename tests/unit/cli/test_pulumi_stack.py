"""The stack, driven through a stand-in for the pulumi program."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from terrace_cli.errors import CliError, NotUpInTimeError, UsageError
from terrace_cli.pulumi_environment import pulumi_variables, shell_exports
from terrace_cli.pulumi_stack import PulumiStack

from .fake_pulumi import FakePulumi


@pytest.fixture
def pulumi(tmp_path: Path) -> FakePulumi:
    return FakePulumi(tmp_path / "pulumi")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stack(clone: Path, pulumi: FakePulumi, said: list[str]) -> PulumiStack:
    return PulumiStack(clone, pulumi.bin_directory, said.append)


def test_it_runs_in_the_clone_with_the_machines_state(
    stack: PulumiStack,
    pulumi: FakePulumi,
    clone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack.ensure_selected()
    (call,) = pulumi.calls()
    assert call["cwd"] == str(clone)
    environment = call["env"]
    assert isinstance(environment, dict)
    assert environment["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/state/pulumi?metadata=skip"
    assert environment["PULUMI_HOME"] == f"{tmp_path}/state/pulumi/home"
    assert environment["PULUMI_CONFIG_PASSPHRASE"] == "terrace-local"
    path = environment["PATH"].split(os.pathsep)
    assert path[:2] == [str(pulumi.bin_directory), str(Path(sys.executable).parent)]
    assert call["argv"] == ["stack", "select", "--stack", "local", "--create", "--non-interactive"]


def test_settings_of_other_projects_do_not_reach_it(
    clone: Path, pulumi: FakePulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_STACK", "production")
    PulumiStack(clone, pulumi.bin_directory, lambda _: None).ensure_selected()
    environment = pulumi.calls()[0]["env"]
    assert isinstance(environment, dict)
    assert "PULUMI_STACK" not in environment


def test_a_stage_that_is_set_already_is_not_set_again(
    stack: PulumiStack, pulumi: FakePulumi, clone: Path
) -> None:
    before = (clone / "Pulumi.local.yaml").read_text()
    stack.ensure_stage(1)
    assert pulumi.asked() == []
    assert (clone / "Pulumi.local.yaml").read_text() == before
    stack.ensure_stage(2)
    assert pulumi.asked() == [["config", "set", "--stack", "local", "terrace:stage", "2"]]


@pytest.mark.parametrize("text", ["config: [", "config: 3\n", "- a\n"])
def test_damaged_settings_are_wrong_usage(stack: PulumiStack, clone: Path, text: str) -> None:
    (clone / "Pulumi.local.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"Pulumi\.local\.yaml"):
        stack.configured_stage()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "confg:\n  terrace:stage: 1\n",
            "unknown key 'confg' at the top level; did you mean 'config'?",
        ),
        ("encryptionSalt: v1:x\nconfig: {}\n", "did you mean 'encryptionsalt'?"),
        (
            "terrace:stage: 1\n",
            "unknown key 'terrace:stage' at the top level; settings belong below",
        ),
        ("7: x\nconfig: {}\n", "unknown key '7' at the top level."),
    ],
)
def test_a_key_that_pulumi_would_ignore_is_wrong_usage(
    stack: PulumiStack, clone: Path, text: str, told: str
) -> None:
    (clone / "Pulumi.local.yaml").write_text(text)
    with pytest.raises(UsageError) as refused:
        stack.configured_stage()
    assert str(refused.value).startswith("Pulumi.local.yaml: ")
    assert told in str(refused.value)
    valid = "Valid there: config, environment, encryptionsalt, encryptedkey, secretsprovider."
    assert valid in str(refused.value)


def test_every_key_of_pulumis_own_may_stand_at_the_top(stack: PulumiStack, clone: Path) -> None:
    (clone / "Pulumi.local.yaml").write_text(
        "secretsprovider: awskms://alias/x\nencryptedkey: k\nencryptionsalt: s\n"
        "environment: [e]\nconfig:\n  terrace:stage: 2\n"
    )
    assert stack.configured_stage() == "2"


def test_missing_or_empty_settings_have_no_stage(stack: PulumiStack, clone: Path) -> None:
    (clone / "Pulumi.local.yaml").write_text("")
    assert stack.configured_stage() is None
    (clone / "Pulumi.local.yaml").unlink()
    assert stack.configured_stage() is None


def test_up_tells_what_it_did(stack: PulumiStack, pulumi: FakePulumi, said: list[str]) -> None:
    pulumi.plan({"up": {"out": " +  kubernetes:core/v1:Namespace ns created (0.2s) \n"}})
    stack.up()
    assert said == ["created Namespace ns (0.2s)"]


def test_a_failed_up_tells_why_and_where_the_log_is(
    stack: PulumiStack, pulumi: FakePulumi, tmp_path: Path
) -> None:
    out = (
        "Updating (local):\n\nDiagnostics:\n  kubernetes:apps/v1:Deployment (gateway):\n"
        "    error: 1 error occurred:\n\nOutputs:\n"
    )
    pulumi.plan({"up": {"code": 255, "out": out}})
    with pytest.raises(NotUpInTimeError) as failure:
        stack.up()
    assert "1 error occurred" in str(failure.value)
    assert "Outputs" not in str(failure.value)
    assert str(tmp_path / "state" / "log" / "pulumi-up.log") in str(failure.value)


def test_a_lock_taken_just_before_is_waited_for_and_tried_again(
    stack: PulumiStack, pulumi: FakePulumi
) -> None:
    locked = "error: the stack is currently locked by 1 lock(s). Either wait\n"
    pulumi.plan({"up": {"code": 255, "err": locked}})
    with pytest.raises(NotUpInTimeError, match="currently locked"):
        stack.up()
    assert [call[0] for call in pulumi.asked()] == ["up"] * 5


def test_a_failed_up_because_of_settings_is_wrong_usage(
    stack: PulumiStack, pulumi: FakePulumi
) -> None:
    line = "error: Pulumi.local.yaml: unknown key 'terrace:stge'; did you mean 'terrace:stage'?"
    pulumi.plan(
        {"up": {"code": 255, "out": f"Diagnostics:\n  pulumi:pulumi:Stack (x):\n    {line}\n"}}
    )
    with pytest.raises(UsageError, match="did you mean 'terrace:stage'"):
        stack.up()


def test_an_up_that_dies_without_a_word_still_says_something(
    stack: PulumiStack, pulumi: FakePulumi
) -> None:
    pulumi.plan({"up": {"code": 2, "err": "panic: no last newline"}})
    with pytest.raises(NotUpInTimeError, match="panic: no last newline"):
        stack.up()


def test_outputs_and_their_failure(stack: PulumiStack, pulumi: FakePulumi) -> None:
    pulumi.plan({"stack": {"out": json.dumps({"gateway_url": "http://g"})}})
    assert stack.outputs() == {"gateway_url": "http://g"}
    pulumi.plan({"stack": {"code": 1, "err": "error: no stack"}})
    with pytest.raises(CliError, match="error: no stack"):
        stack.outputs()


def _lock(tmp_path: Path, **content: object) -> Path:
    directory = tmp_path / "state/pulumi/.pulumi/locks/organization/terrace/local"
    directory.mkdir(parents=True)
    lock = directory / "0.json"
    lock.write_text(json.dumps(content) if content else "{half")
    return lock


def test_the_lock_of_a_dead_pulumi_is_released(
    stack: PulumiStack, pulumi: FakePulumi, tmp_path: Path, said: list[str]
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lock = _lock(tmp_path, pid=dead.pid, hostname=socket.gethostname())
    stack.release_stale_lock()
    assert pulumi.asked() == [["cancel", "--stack", "local", "--yes", "--non-interactive"]]
    assert not lock.exists()
    assert "dead" in said[0]


def test_a_pid_that_belongs_to_somebody_else_by_now_is_no_owner(
    stack: PulumiStack, tmp_path: Path
) -> None:
    lock = _lock(tmp_path, pid=os.getpid(), hostname=socket.gethostname())
    stack.release_stale_lock()
    assert not lock.exists()
    os.kill(os.getpid(), 0)


def test_a_half_written_lock_is_released(stack: PulumiStack, tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    stack.release_stale_lock()
    assert not lock.exists()


def test_a_living_pulumi_is_waited_for_and_left_alone(
    clone: Path, pulumi: FakePulumi, tmp_path: Path, said: list[str]
) -> None:
    program = tmp_path / "pulumi-alive" / "pulumi"
    program.parent.mkdir()
    program.symlink_to("/bin/sleep")
    living = subprocess.Popen([str(program), "60"])
    lock = _lock(tmp_path, pid=living.pid, hostname=socket.gethostname())

    def ends(sentence: str) -> None:
        said.append(sentence)
        lock.unlink()  # what Pulumi does at its end

    try:
        PulumiStack(clone, pulumi.bin_directory, ends).release_stale_lock()
        assert said == [
            f"a Pulumi of an earlier run (pid {living.pid}) still works on the stack; waiting"
        ]
        assert pulumi.asked() == []
        assert living.poll() is None
    finally:
        living.kill()
        living.wait()


def test_a_pulumi_that_has_ended_but_was_not_waited_for_is_dead(
    stack: PulumiStack, tmp_path: Path
) -> None:
    program = tmp_path / "pulumi-zombie" / "pulumi"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    zombie = subprocess.Popen([str(program)])
    lock = _lock(tmp_path, pid=zombie.pid, hostname=socket.gethostname())
    while f"{zombie.pid} (pulumi) Z" not in Path(f"/proc/{zombie.pid}/stat").read_text():
        time.sleep(0.01)
    stack.release_stale_lock()
    assert not lock.exists()
    zombie.wait()


def test_ctrl_c_cancels_pulumi_in_order(clone: Path, pulumi: FakePulumi, tmp_path: Path) -> None:
    pulumi.plan({"up": {"survives": True}})
    code = (
        "import sys; from pathlib import Path\n"
        "from terrace_cli.main import run\n"
        "from terrace_cli.pulumi_stack import PulumiStack\n"
        f"stack = PulumiStack(Path({str(clone)!r}), Path({str(pulumi.bin_directory)!r}), print)\n"
        "sys.exit(run(stack.up))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    _wait_for(pulumi.folder / "pid")
    process.send_signal(2)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert (pulumi.folder / "cancelled").exists()


def test_a_killed_terrace_leaves_pulumi_to_finish(
    clone: Path, pulumi: FakePulumi, tmp_path: Path
) -> None:
    pulumi.plan({"up": {"survives": True}})
    code = (
        "from pathlib import Path\n"
        "from terrace_cli.pulumi_stack import PulumiStack\n"
        f"PulumiStack(Path({str(clone)!r}), Path({str(pulumi.bin_directory)!r}), print).up()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    pid = int(_wait_for(pulumi.folder / "pid").read_text())
    process.kill()
    process.wait()
    time.sleep(0.3)
    os.kill(pid, 0)
    os.kill(pid, 2)
    _wait_for(pulumi.folder / "cancelled")


def test_the_exports_survive_a_shell(tmp_path: Path) -> None:
    odd = {"A": "it's; $HOME `x`", "B": "plain"}
    done = subprocess.run(
        ["sh", "-c", f'{shell_exports(odd)}\nprintf "%s|%s" "$A" "$B"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "it's; $HOME `x`|plain"


def test_plugins_are_not_fetched_when_ours_is_on_path(tmp_path: Path) -> None:
    assert "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION" not in pulumi_variables(tmp_path)
    plugin = tmp_path / "pulumi-resource-kubernetes"
    plugin.touch(mode=0o755)
    assert pulumi_variables(tmp_path)["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"


@pytest.mark.parametrize("code", [0, 255])
def test_what_pulumi_leaves_in_its_temporary_folder_goes_with_the_run(
    stack: PulumiStack, pulumi: FakePulumi, tmp_path: Path, code: int
) -> None:
    of_a_killed_run = tmp_path / "state/tmp/pulumi-earlier/kubeconfig1"
    of_a_killed_run.parent.mkdir(parents=True)
    of_a_killed_run.touch()
    pulumi.plan({"up": {"code": code, "err": "error: x\n"}})
    with contextlib.suppress(NotUpInTimeError):
        stack.up()
    [call] = pulumi.calls()
    assert isinstance(call["env"], dict)
    assert Path(call["env"]["TMPDIR"]).parent == tmp_path / "state/tmp"
    assert not (tmp_path / "state/tmp").exists()


def test_the_temporary_files_of_whoever_has_the_stack_stay(
    stack: PulumiStack, pulumi: FakePulumi, tmp_path: Path
) -> None:
    in_use = tmp_path / "state/tmp/pulumi-earlier/kubeconfig1"
    in_use.parent.mkdir(parents=True)
    in_use.touch()
    locked = "error: the stack is currently locked by 1 lock(s). Either wait\n"
    pulumi.plan({"up": {"code": 255, "err": locked}})
    with pytest.raises(NotUpInTimeError):
        stack.up()
    assert list((tmp_path / "state/tmp").rglob("kubeconfig*")) == [in_use]


def _wait_for(path: Path) -> Path:
    for _ in range(1200):
        if path.exists() and (path.stat().st_size or path.name == "cancelled"):
            return path
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")
