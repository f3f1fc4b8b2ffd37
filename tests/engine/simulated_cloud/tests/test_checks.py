"""What is refused at Check, in a preview already: each rule with inputs that pass and with inputs
that do not. The cases are in ``checks/``, one file per kind of service."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from account import Account

from simulated_cloud.aws.catalogue import MODELS

TYPES: list[dict[str, Any]] = [
    entry
    for file in sorted((Path(__file__).parent / "checks").glob("*.yaml"))
    for entry in yaml.safe_load(file.read_text())
]
BAD = [
    pytest.param(entry, case, id=f"{entry['type']}-{case['set']}-{index}")
    for entry in TYPES
    for index, case in enumerate(entry["bad"])
]


def changed(inputs: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at `path` replaced, or taken out when it is None."""
    result = deepcopy(inputs)
    *way, last = path.replace("]", "").replace("[", ".").split(".")
    target: Any = result
    for step in way:
        target = target[int(step)] if isinstance(target, list) else target[step]
    if value is None:
        target.pop(last, None)
    else:
        target[last] = value
    return result


@pytest.mark.parametrize("entry", TYPES, ids=lambda entry: entry["type"])
def test_good_inputs_pass(account: Account, entry: dict[str, Any]) -> None:
    _, failures = account.check(entry["type"], entry["good"])
    assert failures == {}


@pytest.mark.parametrize(("entry", "case"), BAD)
def test_bad_inputs_name_the_property(
    account: Account, entry: dict[str, Any], case: dict[str, Any]
) -> None:
    inputs = changed(entry["good"], case["set"], case["to"])
    _, failures = account.check(entry["type"], inputs)
    assert case["words"] in failures.get(case["property"], f"nothing there, but: {failures}")


def test_every_type_with_rules_has_cases() -> None:
    ruled = {token for token, model in MODELS.items() if model.rules or model.arns}
    without = ruled - {entry["type"] for entry in TYPES}
    assert without == set()
