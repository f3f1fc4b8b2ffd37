"""A terrace command without a machine: its own clone, state directory, and captured output."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from terrace_cli.main import run, terrace

from .fake_users_pulumi import UsersPulumiOnPath

SUBSTRATE = """# kept
config:
  terrace:stage: "1"
  terrace:substrate: aws
  terrace:part: substrate
"""
PLATFORM = """# kept too
config:
  terrace:stage: "1"
  terrace:substrate: aws
  terrace:part: platform
  terrace:substrateStack: aws-a
"""
STANDING = {"aws-a": {"substrate": {"version": 1}}, "aws-a-platform": {}}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty clone and an empty machine."""
    root = tmp_path / "clone"
    root.mkdir()
    (root / "Pulumi.yaml").write_text("name: terrace\nruntime: python\n")
    (root / "Pulumi.local.yaml").write_text('# kept\nconfig:\n  terrace:stage: "1"\n')
    monkeypatch.setenv("TERRACE_REPOSITORY", str(root))
    monkeypatch.setenv("TERRACE_STATE_DIR", str(tmp_path / "state"))
    for name in ("TERRACE_ADMIN_URL", "TERRACE_ADMIN_KEY", "TERRACE_DEBUG", "TERRACE_KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
def invoke(clone: Path, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run `terrace ...` as `main` does, and return its exit code and what it said."""
    del clone

    def invoke(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(lambda: terrace.main(list(arguments), "terrace", standalone_mode=False))
        said = capsys.readouterr()
        return Outcome(int(code), said.out, said.err)

    return invoke


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsersPulumiOnPath:
    found = UsersPulumiOnPath(tmp_path / "users-pulumi")
    monkeypatch.setenv("PATH", f"{found.bin_directory}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def files(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a pair of stacks. What the program's check says is in verdicts.json."""
    (clone / "Pulumi.aws-a.yaml").write_text(SUBSTRATE)
    (clone / "Pulumi.aws-a-platform.yaml").write_text(PLATFORM)
    check = clone / "check"
    check.mkdir()
    (check / "verdicts.json").write_text("{}")
    # The check of the settings is a process of its own: this one notes which file it was asked of.
    package = check / "terrace_blueprints"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "check_settings.py").write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        f"here, file = Path({str(check)!r}), Path(sys.argv[-1])\n"
        "asked = json.load(sys.stdin)\n"
        "with (here / 'asked.jsonl').open('a') as log:\n"
        "    log.write(json.dumps([file.name, str(asked.get('terrace:stage'))]) + '\\n')\n"
        "said = json.loads((here / 'verdicts.json').read_text()).get(file.name)\n"
        "sys.stderr.write(said or '')\n"
        "print(asked.get('terrace:stage', 1))\n"
        "sys.exit(2 if said else 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(check))
    return clone
