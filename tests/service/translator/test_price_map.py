"""The installed LiteLLM's own map, as the command prints it."""

import json
import subprocess
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

from terrace_common.governance import load_governance
from terrace_common.prices.cost_map import compare, price_of_entry

from .conftest import PACKAGE, PYTHON

EXAMPLE = files("terrace_common") / "examples" / "governance.aws.yaml"


def run(file: Path) -> subprocess.CompletedProcess[str]:
    command = [str(PYTHON), "-m", "terrace_translator.price_map", str(file)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env={"PYTHONPATH": str(PACKAGE)}
    )


def test_our_example_for_aws_costs_what_the_map_says_but_for_caches(tmp_path: Path) -> None:
    file = tmp_path / "governance.yaml"
    file.write_text(EXAMPLE.read_text("utf-8"))
    answer = run(file)
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout, parse_float=Decimal)
    governance = load_governance(file.read_text(), "governance.yaml")
    assert set(document["models"]) == {model.name for model in governance.models}
    for model in governance.models:
        entry = document["models"][model.name]["entry"]
        assert price_of_entry(entry) is not None
        drift = list(compare(model.name, model.price, entry, context_tokens=model.context_tokens))
        assert [one for one in drift if one.kind != "missing"] == []
        assert all(one.what.startswith("cache_") for one in drift)


def test_what_is_no_spec_is_refused_in_words(tmp_path: Path) -> None:
    for number, text in enumerate(["", "[]", "models: [{}]", "a: [", "\x00"]):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        answer = run(file)
        assert answer.returncode == 2
        assert answer.stderr.startswith("price_map: ")
        assert "Traceback" not in answer.stderr
    assert run(tmp_path / "none.yaml").returncode == 2
