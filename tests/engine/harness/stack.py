"""A stack, as a test speaks of it."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from harness.engine import Engine
from harness.runs import Run

ROOT = Path(__file__).resolve().parents[3]
_NUMBER = count(1)
_LONGEST = 300  # seconds that a run may take before the test gives up on it


@dataclass(frozen=True)
class Stack:
    """One stack of a project folder. Every command is the real CLI's."""

    engine: Engine
    folder: Path
    name: str

    # --- making one ---

    @classmethod
    def of_program(cls, engine: Engine, name: str, source: str, **config: Any) -> "Stack":
        """A stack of a small program of the test's own."""
        folder = engine.home / f"project-{name}"
        folder.mkdir()
        (folder / "Pulumi.yaml").write_text("name: trial\nruntime: python\n")
        (folder / "__main__.py").write_text(source)
        return cls(engine, folder, name)._created(config)

    @classmethod
    def of_terrace(
        cls,
        engine: Engine,
        name: str,
        settings: str = "",
        change: Callable[[dict[str, Any]], None] | None = None,
    ) -> "Stack":
        """A stack of Terrace's program, with the settings file of the stack ``settings``.

        ``change`` may edit the settings (the mapping under ``config:``), in a copy: the repository
        is not written to.
        """
        folder = engine.home / "terrace"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(ROOT / "Pulumi.yaml", folder)
            for part in ("blueprints", "examples", "services"):
                (folder / part).symlink_to(ROOT / part)
        config = yaml.safe_load((ROOT / f"Pulumi.{settings or name}.yaml").read_text())["config"]
        if change is not None:
            change(config)
        return cls(engine, folder, name)._created(config)

    def _created(self, config: Mapping[str, Any]) -> "Stack":
        self.settings.write_text(yaml.safe_dump({"config": dict(config)}))
        self.engine.pulumi("stack", "init", self.name, folder=self.folder)
        return self

    def on(self, engine: Engine) -> "Stack":
        """This stack on a copy of its machine."""
        return replace(self, engine=engine, folder=engine.home / self.folder.name)

    def next_to(self, name: str, settings: str = "") -> "Stack":
        """Another stack of Terrace's program on the same machine."""
        return Stack.of_terrace(self.engine, name, settings)

    # --- commands ---

    def preview(self, *options: str) -> Run:
        return self.run("preview", *options)

    def up(self, *options: str) -> Run:
        return self.run("up", "--yes", "--skip-preview", *options)

    def refresh(self, *options: str) -> Run:
        return self.run("refresh", "--yes", "--skip-preview", *options)

    def destroy(self, *options: str) -> Run:
        return self.run("destroy", "--yes", "--skip-preview", *options)

    def cancel(self) -> str:
        """Give up the lock that a killed run left behind."""
        return self.engine.pulumi("cancel", "--yes", "--stack", self.name, folder=self.folder)

    def settle_pending(self, find: Callable[[str, str], str | None]) -> list[str]:
        """What a person does after a killed run: look in the account for each thing whose create
        was under way, take it into the state if it is there, and forget the create if it is not.

        ``find(type, name)`` gives the id in the account. Returns the names that were taken in.
        Edits an export, because `pulumi refresh --import-pending-creates` of engine 3.274 forgets
        the create and imports nothing.
        """
        document = json.loads(self._export_text())
        deployment, taken = document["deployment"], list[str]()
        for operation in deployment.pop("pending_operations", None) or []:
            resource = operation["resource"]
            name = resource["urn"].rpartition("::")[2]
            if operation["type"] == "creating" and (id := find(resource["type"], name)):
                deployment["resources"].append({**resource, "id": id, "outputs": {}})
                taken.append(name)
        file = self.engine.home / "edited-state.json"
        file.write_text(json.dumps(document))
        arguments = ("stack", "import", "--file", str(file), "--stack", self.name)
        self.engine.pulumi(*arguments, folder=self.folder)
        return taken

    def restore_checkpoint(self) -> bool:
        """What a person does when a kill -9 has cut off the file backend's own write: take the
        checkpoint before it, which lies beside it. Returns whether that was needed."""
        folder = self.engine.home / "state" / ".pulumi" / "stacks"
        [checkpoint] = folder.glob(f"*/{self.name}.json")
        attributes = checkpoint.with_name(f"{checkpoint.name}.attrs")
        cut_off = [one for one in (checkpoint, attributes) if one.exists() and not _is_json(one)]
        if checkpoint in cut_off:
            shutil.copy(checkpoint.with_name(f"{checkpoint.name}.bak"), checkpoint)
        if attributes in cut_off:
            attributes.unlink()  # the backend does without
        return bool(cut_off)

    def forget(self, urn: str) -> None:
        """Take a resource out of the state without touching the thing itself."""
        arguments = ("state", "delete", urn, "--yes", "--stack", self.name)
        self.engine.pulumi(*arguments, folder=self.folder)

    def must_be_steady(self) -> None:
        """A preview finds nothing to do."""
        run = self.preview("--expect-no-changes")
        found = "\n".join(f"{step} {step.keys}" for step in run.changes)
        assert run.ok, f"preview wants changes:\n{found}\n{run.errors}"

    def run(self, command: str, *options: str) -> Run:
        """`pulumi COMMAND` to its end."""
        return self.start(command, *options).wait()

    def start(self, command: str, *options: str) -> "Running":
        """`pulumi COMMAND`, to be killed or waited for."""
        log = self.engine.home / f"events-{next(_NUMBER)}.jsonl"
        arguments = [command, "--stack", self.name, "--event-log", str(log), *options]
        return Running(self.engine, " ".join([command, *options]), arguments, self.folder, log)

    # --- state and settings ---

    @property
    def settings(self) -> Path:
        return self.folder / f"Pulumi.{self.name}.yaml"

    def change(self, **config: Any) -> None:
        """Set configuration; ``__`` in a key stands for ``:``."""
        document = yaml.safe_load(self.settings.read_text())
        for key, value in config.items():
            document["config"][key.replace("__", ":")] = value
        self.settings.write_text(yaml.safe_dump(document))

    def export(self) -> dict[str, Any]:
        """The deployment as `pulumi stack export` writes it."""
        return json.loads(self._export_text())["deployment"]

    def _export_text(self) -> str:
        return self.engine.pulumi("stack", "export", "--stack", self.name, folder=self.folder)

    def outputs(self) -> dict[str, Any]:
        arguments = ("stack", "output", "--json", "--stack", self.name)
        return json.loads(self.engine.pulumi(*arguments, folder=self.folder))

    def resources(self) -> list[dict[str, Any]]:
        """The resources in the state; none for a stack that was destroyed."""
        return self.export().get("resources") or []

    def ids(self, kind: str) -> dict[str, str]:
        """Name -> id of the resources of a type in the state."""
        return {
            r["urn"].rpartition("::")[2]: r["id"] for r in self.resources() if r["type"] == kind
        }


class Running:
    """A run that goes on."""

    def __init__(
        self, engine: Engine, command: str, arguments: list[str], folder: Path, log: Path
    ) -> None:
        self.command = command
        self._log = log
        self._output = log.with_suffix(".out")
        self._process = engine.start(arguments, folder)

    def wait(self) -> Run:
        output, _ = self._process.communicate(timeout=_LONGEST)
        return Run.read(self.command, self._process.returncode, output, self._log)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns as soon as ``condition`` holds while the run goes on."""
        deadline = time.monotonic() + _LONGEST
        while not condition():
            assert self._process.poll() is None, f"it ended first:\n{self.wait().output}"
            assert time.monotonic() < deadline, f"waited {_LONGEST} s in vain"
            time.sleep(0.02)

    def kill(self) -> Run:
        """kill -9 of the engine, its language host, its program and its providers, at once."""
        for pid in _family(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return self.wait()


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_text())
    except ValueError:
        return False
    return True


def _family(pid: int) -> list[int]:
    """A process and all that it started, directly or not; parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found
