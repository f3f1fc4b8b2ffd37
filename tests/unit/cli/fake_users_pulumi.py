"""A `pulumi` for PATH with a backend of its own: stacks, outputs, a lock, failures; it keeps a log.

What it says is what Pulumi's own CLI says with a backend of files.
"""

import json
import stat
import sys
from pathlib import Path
from typing import Any

SCRIPT = """#!{python}
import json, os, re, signal, sys, time
from pathlib import Path
home = Path({home!r})
argv = sys.argv[1:]
state = json.loads((home / "state.json").read_text())
with (home / "calls.jsonl").open("a") as calls:
    note = dict(argv=argv, cwd=os.getcwd(), environment=dict(os.environ))
    calls.write(json.dumps(note) + "\\n")

def fail(text, code=255):
    print(text, file=sys.stderr)
    sys.exit(code)

def save():
    (home / "state.json").write_text(json.dumps(state))

name = argv[argv.index("--stack") + 1] if "--stack" in argv else None
if state.get("no_login"):
    fail("error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions")
if argv[:2] == ["stack", "ls"]:
    print(json.dumps([dict(name=state["prefix"] + stack) for stack in state["stacks"]]))
elif argv[:2] == ["stack", "init"]:
    state["stacks"][argv[2]] = dict()
    save()
elif argv[:2] == ["stack", "output"]:
    print(json.dumps(state["stacks"][name]))
elif argv[:2] == ["stack", "export"]:
    if name not in state["stacks"]:
        fail(f"error: no stack named '{{name}}' found")
    given = state["resources"].get(name)
    print(json.dumps(dict(version=3, deployment=dict(resources=given) if given else dict())))
elif argv[:2] == ["config", "set"]:
    file = Path(f"Pulumi.{{name}}.yaml")
    line = f'terrace:stage: "{{argv[-1]}}"'
    file.write_text(re.sub(r"terrace:stage: .*", line, file.read_text()))
else:
    print(f"Pulumi's own {{argv[0]}} of {{name}}", flush=True)
    if name in state["locked"]:
        fail("error: the stack is currently locked by 1 lock(s). Either wait for the other"
             " process(es) to end or delete the lock file with `pulumi cancel`.\\n"
             "  file:///state/0.json: created by root@elsewhere (pid 4711)"
             " at 2026-11-30T10:00:00Z")
    if name in state["slow"]:
        def stop(*_):
            with (home / "told").open("a") as told:
                told.write("x")
            # Longer than the next signal takes; a second SIGINT must not be let in meanwhile.
            time.sleep(1)
            (home / "ended").touch()
            sys.exit(1)
        signal.signal(signal.SIGINT, stop)
        (home / "running").touch()
        for _ in range(600):  # a signal that comes just before a sleep is heeded after it
            time.sleep(0.1)
    if f"{{argv[0]}} {{name}}" in state["failing"]:
        fail(state["failing"][f"{{argv[0]}} {{name}}"])
    if argv[0] == "up":
        state["stacks"][name] = state["outputs"].get(name, dict())
    if argv[0] == "destroy":
        state["stacks"][name] = dict()
    save()
"""


class UsersPulumiOnPath:
    """`calls()` is what it was asked; the keyword arguments of `state` what it finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin_directory = folder / "bin"
        self.bin_directory.mkdir(parents=True)
        program = self.bin_directory / "pulumi"
        program.write_text(SCRIPT.format(python=sys.executable, home=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.state()

    def state(self, **given: Any) -> None:
        """stacks (name -> outputs), outputs (after up), resources (name -> the state's), locked,
        slow, failing ("up x" -> text)."""
        default: dict[str, Any] = {"stacks": {}, "prefix": "", "locked": [], "slow": []}
        default |= {"failing": {}, "resources": {}}
        default |= {"outputs": {"aws-a": {"substrate": {"version": 1}}}}
        (self.folder / "state.json").write_text(json.dumps(default | given))

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def changes(self) -> list[list[str]]:
        """What it was asked, without the questions."""
        asked = [list(call["argv"]) for call in self.calls()]
        questions = (["stack", "ls"], ["stack", "output"], ["stack", "export"])
        return [argv for argv in asked if argv[:2] not in questions]
