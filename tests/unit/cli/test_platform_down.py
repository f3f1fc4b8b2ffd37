"""`down` says what goes before it goes, asks only people, and reports what it could not remove."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from terrace_cli import platform_down
from terrace_cli.endpoints import Endpoints, write_endpoints
from terrace_local import cluster

from .conftest import Invoke


@pytest.fixture
def downs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The keep_data of every call to the cluster's down."""
    calls: list[bool] = []

    def down(*, keep_data: bool, clone: Path, progress: Any) -> cluster.DownReport:
        del clone, progress
        calls.append(keep_data)
        return cluster.DownReport()

    monkeypatch.setattr(cluster, "down", down)
    monkeypatch.setattr(cluster, "may_go_down", lambda **_: None)
    return calls


@pytest.fixture
def data(clone: Path, tmp_path: Path) -> Path:
    del clone
    state = tmp_path / "state"
    for name, size in (("postgres", 2048), ("model-simulator", 100), ("something", 1)):
        (state / "volumes" / name).mkdir(parents=True)
        (state / "volumes" / name / "file").write_bytes(b"x" * size)
    (state / "pulumi").mkdir()
    (state / "pulumi" / "state.json").write_bytes(b"x" * 3 * 2**20)
    (state / "pulumi" / "loop").symlink_to(state)
    return state


def test_it_says_which_data_goes_and_how_much(
    invoke: Invoke, downs: list[bool], data: Path
) -> None:
    del data
    outcome = invoke("down", "--yes")
    assert outcome.code == 0
    assert "will be deleted" in outcome.err
    for said in (
        "2.0 KiB  the ledger and the keys",
        "100 B  the simulator's own bill",
        "3.0 MiB",
        "something",
    ):
        assert said in outcome.err
    assert downs == [False]


def test_kept_data_is_said_to_stay(invoke: Invoke, downs: list[bool], data: Path) -> None:
    del data
    outcome = invoke("down", "--keep-data")
    assert "stays" in outcome.err
    assert "deleted" not in outcome.err
    assert downs == [True]


def test_with_nothing_there_it_says_so(invoke: Invoke, downs: list[bool]) -> None:
    outcome = invoke("down")
    assert outcome.code == 0
    assert "no data" in outcome.err
    assert downs == [False]


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_person_is_asked(
    invoke: Invoke, downs: list[bool], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer + "\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _="": answer)
    assert invoke("down").code == 0
    assert downs == ([False] if answer == "y" else [])


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("typed", ["no\n", "yes\n", "", None])
def test_who_cannot_be_asked_must_say_what_becomes_of_the_data(
    invoke: Invoke, downs: list[bool], monkeypatch: pytest.MonkeyPatch, typed: str | None
) -> None:
    monkeypatch.setattr(sys, "stdin", None if typed is None else io.StringIO(typed))
    outcome = invoke("down")
    assert outcome.code == 2
    assert "not a terminal: add --yes to delete the data, or --keep-data to keep it" in outcome.err
    assert downs == []
    assert invoke("down", "--keep-data").code == 0
    assert downs == [True]


def test_the_endpoints_go_with_the_platform(invoke: Invoke, downs: list[bool], clone: Path) -> None:
    path = write_endpoints(Endpoints(gateway="g", admin="a", prometheus="p", simulator="s"))
    invoke("down", "--yes")
    assert not path.exists()
    assert path.is_relative_to(clone)
    assert downs == [False]


def test_what_could_not_be_removed_is_said_and_fails(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "may_go_down", lambda **_: None)
    monkeypatch.setattr(cluster, "down", lambda **_: cluster.DownReport(left=("mount /x",)))
    outcome = invoke("down", "--yes")
    assert outcome.code == 1
    assert "mount /x" in outcome.err


@pytest.mark.usefixtures("data")
def test_somebody_elses_cluster_is_code_4_and_no_data_is_said_to_go(
    invoke: Invoke, downs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, clone: Path) -> None:
        del clone
        raise cluster.HeldByAnother("the clone at /elsewhere has it")

    monkeypatch.setattr(cluster, "may_go_down", refuse)
    for arguments in (("--yes",), ("--keep-data",)):
        outcome = invoke("down", *arguments)
        assert outcome.code == 4
        assert "/elsewhere" in outcome.err
        assert "This data" not in outcome.err
    assert downs == []


def test_a_file_that_goes_while_it_is_counted_is_no_error(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = data / "volumes" / "postgres" / "vanishing"
    vanishing.touch()
    real = os.walk

    def walk(top: Path) -> Any:
        for found in real(top):
            vanishing.unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "walk", walk)
    assert platform_down.holdings()[1].bytes == 2048
