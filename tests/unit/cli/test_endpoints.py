"""Where the platform answers."""

import json
from pathlib import Path

import pytest

from terrace_cli.endpoints import Endpoints, read_endpoints, write_endpoints

from .conftest import Invoke

ENDPOINTS = Endpoints(
    gateway="http://g", admin="http://a", prometheus="http://p", simulator="http://s"
)


def test_what_is_written_is_read_and_printed(clone: Path, invoke: Invoke) -> None:
    path = write_endpoints(ENDPOINTS)
    assert path == clone / ".terrace" / "endpoints.json"
    assert read_endpoints() == ENDPOINTS
    assert [entry.name for entry in path.parent.iterdir()] == ["endpoints.json"]
    assert json.loads(invoke("endpoints", "--json").out) == {
        "gateway": "http://g",
        "admin": "http://a",
        "prometheus": "http://p",
        "simulator": "http://s",
    }
    assert "http://p" in invoke("endpoints").out


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gateway": "http://g"}', "null"])
def test_a_damaged_file_is_said(clone: Path, invoke: Invoke, text: str) -> None:
    (clone / ".terrace").mkdir()
    (clone / ".terrace" / "endpoints.json").write_text(text)
    outcome = invoke("endpoints")
    assert outcome.code == 6
    assert "terrace up" in outcome.err
