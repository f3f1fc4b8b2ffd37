"""``frozen``: a value for the type checker, cheap at run time."""

import subprocess
import sys
from dataclasses import field, fields, replace
from pathlib import Path

import pytest

from terrace_gateway.frozen import frozen

ROOT = Path(__file__).parents[3]


@frozen
class Point:
    x: int
    y: int = 0
    seen: tuple[str, ...] = field(default=(), repr=False)


def test_it_is_a_value() -> None:
    point = Point(1, y=2)
    assert point == Point(1, 2)
    assert {point: "here"}[Point(1, 2)] == "here"
    assert replace(point, x=5) == Point(5, 2)
    assert [one.name for one in fields(Point)] == ["x", "y", "seen"]
    with pytest.raises(AttributeError):
        point.z = 3  # type: ignore[attr-defined]


def test_the_type_checker_refuses_a_change(tmp_path: Path) -> None:
    checker = ROOT / ".venv/bin/basedpyright"
    file = tmp_path / "changes.py"
    file.write_text(
        "from terrace_gateway.frozen import frozen\n\n\n@frozen\nclass Point:\n    x: int\n\n\n"
        "point = Point(1)\npoint.x = 2\n"
    )
    done = subprocess.run(
        [checker, "--pythonpath", sys.executable, file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert 'Attribute "x" is read-only' in done.stdout
