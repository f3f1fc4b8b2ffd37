"""The boundary: every way to fail is a sentence and a documented code."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from terrace_cli import main as main_module
from terrace_cli.errors import (
    CliError,
    ExitCode,
    HeldByAnotherError,
    NotRunningError,
    NotUpInTimeError,
    UsageError,
)
from terrace_cli.main import run, terrace
from terrace_local.cluster.errors import (
    HeldByAnother,
    NotRunning,
    PreflightFailed,
    Problem,
    StartTimeout,
)
from terrace_local.toolchain import ToolchainError

from .conftest import Invoke


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CliError("x"), 1),
        (UsageError("x"), 2),
        (HeldByAnotherError("x"), 4),
        (NotUpInTimeError("x"), 5),
        (NotRunningError("x"), 6),
        (PreflightFailed([Problem("port", "x")]), 3),
        (HeldByAnother("x"), 4),
        (StartTimeout("x"), 5),
        (NotRunning("x"), 6),
        (ToolchainError("x"), 3),
        (click.UsageError("x"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.exceptions.Exit(7), 7),
    ],
)
def test_each_trouble_has_its_code(
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TERRACE_DEBUG", raising=False)

    def fail() -> None:
        raise error

    assert run(fail) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_defect_is_one_sentence_and_its_traceback_is_for_those_who_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.delenv("TERRACE_DEBUG", raising=False)
    assert run(fail) == ExitCode.CHECK_FAILED
    said = capsys.readouterr().err
    assert "ZeroDivisionError: boom" in said
    assert "Traceback" not in said

    monkeypatch.setenv("TERRACE_DEBUG", "1")
    run(fail)
    assert "Traceback" in capsys.readouterr().err


def test_every_listed_command_exists_and_explains_itself(invoke: Invoke) -> None:
    for name in terrace.list_commands(click.Context(terrace)):
        outcome = invoke(name, "--help")
        assert outcome.code == 0, name
        assert "Usage: terrace" in outcome.out


def test_an_unknown_command_is_wrong_usage(invoke: Invoke) -> None:
    outcome = invoke("frobnicate")
    assert outcome.code == ExitCode.USAGE
    assert "frobnicate" in outcome.err


def test_the_help_documents_the_exit_codes(invoke: Invoke) -> None:
    said = invoke("--help").out
    for code in ExitCode:
        assert f"{code.value} " in said


def test_no_summary_of_a_command_is_cut_off(invoke: Invoke) -> None:
    listed = invoke("--help").out.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert len(listed) == len(terrace.list_commands(click.Context(terrace)))
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []
    assert "2 and 3 come in later releases" in " ".join(invoke("up", "--help").out.split())


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m terrace_cli --help | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in process.stderr
    assert "BrokenPipe" not in process.stderr


def test_light_commands_do_not_import_the_heavy_clients() -> None:
    code = (
        "import sys; from terrace_cli.main import run, terrace\n"
        "run(lambda: terrace.main(['spend', '--help'], standalone_mode=False))\n"
        "heavy = {'openai', 'boto3', 'pulumi', 'terrace_local.cluster'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_outside_of_a_clone_it_says_so(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_REPOSITORY", str(tmp_path))
    outcome = invoke("endpoints")
    assert outcome.code == ExitCode.USAGE
    assert "Pulumi.yaml" in outcome.err


def test_main_leaves_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["terrace", "no-such-command"])
    with pytest.raises(SystemExit) as left:
        main_module.main()
    assert left.value.code == ExitCode.USAGE
