"""kill -9, Ctrl-C and two at once: nothing half-made is used, nothing made twice, nobody left."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from terrace_local.toolchain.places import Places

PROGRAM = Path(__file__).with_name("ensure_tiny.py")
PATIENCE_SECONDS = 120

SLOW_GO = """#!/bin/sh
if [ "$1" = build ]; then
  echo build >> "{calls}"
  for word; do [ "$before" = -o ] && half="${{word}}hello"; before=$word; done
  printf half > "$half"
  sleep 300 &
  echo "$$ $!" > "{pids}.new" && mv "{pids}.new" "{pids}"
  while [ ! -e "{gate}" ]; do sleep 0.05; done
  kill $!
  rm "$half"
fi
exec "{go}" "$@"
"""


@pytest.fixture
def slow_go(tmp_path: Path) -> Path:
    """A folder with a `go` whose builds begin, write half a file and hang until `gate` exists."""
    go = subprocess.run(["which", "go"], capture_output=True, text=True, check=True).stdout.strip()
    folder = tmp_path / "slow"
    folder.mkdir()
    names = {name: folder / name for name in ("calls", "pids", "gate")}
    (folder / "go").write_text(SLOW_GO.format(go=go, **names))
    (folder / "go").chmod(0o755)
    return folder


@pytest.fixture
def start(
    places: Places, modules_root: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    pids = tmp_path / "slow" / "pids"

    def run(*path: Path) -> subprocess.Popen[str]:
        environment = os.environ | {
            "TERRACE_CACHE_DIR": str(places.root),
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
        }
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(modules_root)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for word in pids.read_text().split() if pids.exists() else []:
        with contextlib.suppress(ProcessLookupError):  # only when a test has failed
            os.kill(int(word), signal.SIGKILL)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The first line on stderr that has `text`; fails when none comes."""
    assert process.stderr is not None
    descriptor, seen = process.stderr.fileno(), b""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.1)[0]:
            seen += os.read(descriptor, 65536)
            for line in seen.decode().splitlines():
                if text in line:
                    return line
    raise AssertionError(f"no line with {text!r} in {seen!r}")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def build_pids(slow_go: Path) -> list[int]:
    until((slow_go / "pids").exists)
    return [int(word) for word in (slow_go / "pids").read_text().split()]


def finished(process: subprocess.Popen[str]) -> Path:
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return Path(output.strip())


def says_hello(bin_dir: Path) -> bool:
    done = subprocess.run([bin_dir / "hello"], capture_output=True, text=True, check=True)
    return done.stderr == "hello none\n"


def test_kill_9_in_mid_build_takes_the_compiler_along_and_the_next_run_starts_clean(
    start: Any, slow_go: Path, places: Places
) -> None:
    victim = start(slow_go)
    pids = build_pids(slow_go)
    assert all(alive(pid) for pid in pids)
    victim.kill()
    until(lambda: not any(alive(pid) for pid in pids))
    assert list(places.work.iterdir())
    assert not list(places.entries.glob("*/1.2.3-*"))
    assert says_hello(finished(start()))
    assert not list(places.work.iterdir())


def test_ctrl_c_in_mid_build_takes_the_compiler_along_and_leaves_nothing_half_made(
    start: Any, slow_go: Path, places: Places
) -> None:
    victim = start(slow_go)
    pids = build_pids(slow_go)
    victim.send_signal(signal.SIGINT)
    victim.communicate(timeout=PATIENCE_SECONDS)
    assert victim.returncode in {130, -signal.SIGINT}
    until(lambda: not any(alive(pid) for pid in pids))
    assert not list(places.work.iterdir())
    assert not list(places.entries.glob("*/1.2.3-*"))


def test_two_at_once_build_once_and_the_second_says_that_it_waits(
    start: Any, slow_go: Path
) -> None:
    first = start(slow_go)
    build_pids(slow_go)
    second = start(slow_go)
    assert f"(pid {first.pid})" in line_with(second, "waiting for another process")
    (slow_go / "gate").touch()
    assert says_hello(finished(first))
    assert says_hello(finished(second))
    assert (slow_go / "calls").read_text().splitlines() == ["build"]


def test_the_waiting_one_takes_over_when_the_builder_is_killed(start: Any, slow_go: Path) -> None:
    first = start(slow_go)
    build_pids(slow_go)
    second = start(slow_go)
    line_with(second, "waiting for another process")
    first.kill()
    (slow_go / "gate").touch()
    assert says_hello(finished(second))
    assert (slow_go / "calls").read_text().splitlines() == ["build", "build"]


@pytest.mark.parametrize("milliseconds", [0, 200, 400, 700, 1000])
def test_killed_at_any_moment_the_next_run_succeeds(
    start: Any, places: Places, milliseconds: int
) -> None:
    victim = start()
    time.sleep(milliseconds / 1000)
    victim.kill()
    victim.communicate()
    assert says_hello(finished(start()))
    assert not list(places.work.iterdir())
