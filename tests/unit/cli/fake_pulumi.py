"""A stand-in for the `pulumi` program: notes each call, and does what the test's plan says."""

import json
import stat
import sys
from pathlib import Path

SCRIPT = """#!{python}
import json, os, signal, sys, tempfile, time
from pathlib import Path
home = Path({home!r})
with (home / "calls.jsonl").open("a") as calls:
    noted = ("PATH", "TMPDIR", "PULUMI")
    environment = {{k: v for k, v in os.environ.items() if k.startswith(noted)}}
    note = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": environment}}
    calls.write(json.dumps(note) + "\\n")
plan = json.loads((home / "plan.json").read_text())
if sys.argv[1] == "up":
    # As the Kubernetes provider does.
    descriptor, _ = tempfile.mkstemp(prefix="kubeconfig")
    os.write(descriptor, b"client-key-data: X")
step = plan.get(sys.argv[1], {{}})
if step.get("survives"):
    def stop(*_):
        (home / "cancelled").touch()
        sys.exit(1)
    signal.signal(signal.SIGINT, stop)
    (home / "pid").write_text(str(os.getpid()))
    for _ in range(600):
        time.sleep(0.1)
print(step.get("out", ""), end="")
print(step.get("err", ""), end="", file=sys.stderr)
sys.exit(step.get("code", 0))
"""


class FakePulumi:
    """In `bin_directory`; `calls()` is what it was asked, `plan` what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin_directory = folder / "bin"
        self.bin_directory.mkdir(parents=True)
        program = self.bin_directory / "pulumi"
        program.write_text(SCRIPT.format(python=sys.executable, home=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.plan({})

    def plan(self, steps: dict[str, dict[str, object]]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(steps))

    def calls(self) -> list[dict[str, object]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self) -> list[list[str]]:
        return [list(call["argv"]) for call in self.calls()]  # type: ignore[call-overload]
