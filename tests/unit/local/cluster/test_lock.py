"""Who may work on the machine's cluster, and who holds it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from terrace_local.cluster import stop
from terrace_local.cluster.errors import HeldByAnother
from terrace_local.cluster.files import read_json, write_json
from terrace_local.cluster.lock import machine_lock, refuse_other_holder, take_hold
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import ProcessTable, boot_id, start_time
from terrace_local.cluster.stop import may_go_down


def ignore(_: str) -> None:
    pass


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "state", tmp_path / "run")


@pytest.fixture
def table(paths: Paths) -> ProcessTable:
    return ProcessTable(paths.processes, paths.log)


HOLD = """
import sys
from pathlib import Path
from terrace_local.cluster.lock import machine_lock
from terrace_local.cluster.paths import Paths
paths = Paths(Path(sys.argv[1]), Path(sys.argv[2]))
with machine_lock(paths, clone=Path("/first"), command="up", progress=print):
    print("held", flush=True)
    sys.stdin.readline()
"""
Holder = subprocess.Popen[str]


@pytest.fixture
def holder(paths: Paths) -> Iterator[Holder]:
    argv = [sys.executable, "-c", HOLD, str(paths.state), str(paths.run)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_clone_is_refused_at_once(paths: Paths, holder: Holder) -> None:
    with (
        pytest.raises(HeldByAnother, match=rf"`terrace up` of /first \(pid {holder.pid}\)"),
        machine_lock(paths, clone=Path("/second"), command="up", progress=ignore),
    ):
        pass


def test_down_is_refused_before_it_is_asked_while_another_clone_works(
    paths: Paths, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "require_root", lambda: None)
    before = paths.lock.read_text()
    with pytest.raises(HeldByAnother, match=rf"`terrace up` of /first \(pid {holder.pid}\)"):
        may_go_down(clone=Path("/second"), paths=paths)
    may_go_down(clone=Path("/first"), paths=paths)
    assert paths.lock.read_text() == before
    holder.kill()
    holder.wait()
    may_go_down(clone=Path("/second"), paths=paths)


def test_to_ask_whether_down_may_go_makes_nothing(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "require_root", lambda: None)
    may_go_down(clone=Path("/second"), paths=paths)
    assert not paths.state.exists()


def test_the_same_clone_waits_and_then_works(paths: Paths, holder: Holder) -> None:
    said: list[str] = []

    def release(text: str) -> None:
        said.append(text)
        holder.communicate("go\n", timeout=20)

    with machine_lock(paths, clone=Path("/first"), command="down", progress=release):
        assert len(said) == 1
        assert "waiting for `terrace up` of /first" in said[0]


def test_the_same_clone_gives_up_in_the_end(paths: Paths, holder: Holder) -> None:
    with (
        pytest.raises(HeldByAnother, match="gave up"),
        machine_lock(paths, clone=Path("/first"), command="up", progress=ignore, wait=0.3),
    ):
        pass


def test_a_killed_command_lets_go(paths: Paths, holder: Holder) -> None:
    holder.kill()
    holder.wait()
    with machine_lock(paths, clone=Path("/second"), command="up", progress=ignore):
        assert (read_json(paths.lock) or {})["clone"] == "/second"


def test_a_removed_lock_file_protects_nobody_and_is_made_anew(paths: Paths) -> None:
    with machine_lock(paths, clone=Path("/first"), command="down", progress=ignore):
        paths.lock.unlink()
        with machine_lock(paths, clone=Path("/first"), command="up", progress=ignore):
            assert paths.lock.exists()


@pytest.fixture
def member(paths: Paths) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        entry = {
            "name": "etcd",
            "pid": process.pid,
            "start_time": start_time(process.pid),
            "boot_id": boot_id(),
        }
        write_json(paths.processes / "etcd.json", entry)
        yield process
        process.kill()


@pytest.mark.usefixtures("member")
def test_a_living_holder_is_named(
    paths: Paths, table: ProcessTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_hold(paths, clone=tmp_path)
    with pytest.raises(
        HeldByAnother, match=rf"the clone at {tmp_path} \(user .*, since 20.*\(etcd\)"
    ):
        refuse_other_holder(paths, table, clone=Path("/second"))
    assert refuse_other_holder(paths, table, clone=tmp_path) is False
    monkeypatch.setattr(stop, "require_root", lambda: None)
    with pytest.raises(HeldByAnother, match=rf"the clone at {tmp_path} "):
        may_go_down(clone=Path("/second"), paths=paths)
    may_go_down(clone=tmp_path, paths=paths)


def test_a_dead_holder_can_be_taken_over(
    paths: Paths, table: ProcessTable, member: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    take_hold(paths, clone=tmp_path)
    member.kill()
    member.wait()
    assert refuse_other_holder(paths, table, clone=Path("/second")) is True


def test_a_holder_from_before_a_reboot_is_dead(
    paths: Paths, table: ProcessTable, member: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    take_hold(paths, clone=tmp_path)
    record = read_json(paths.processes / "etcd.json")
    assert record is not None
    write_json(paths.processes / "etcd.json", record | {"boot_id": "another"})
    assert refuse_other_holder(paths, table, clone=Path("/second")) is True


def test_only_down_may_touch_the_cluster_of_a_deleted_clone(
    paths: Paths, table: ProcessTable, member: subprocess.Popen[bytes]
) -> None:
    take_hold(paths, clone=Path("/deleted"))
    assert refuse_other_holder(paths, table, clone=Path("/second"), allow_orphan=True) is True
    with pytest.raises(HeldByAnother):
        refuse_other_holder(paths, table, clone=Path("/second"))


def test_the_time_of_the_first_hold_stays(paths: Paths, tmp_path: Path) -> None:
    take_hold(paths, clone=tmp_path)
    before = read_json(paths.holder)
    take_hold(paths, clone=tmp_path)
    assert read_json(paths.holder) == before
