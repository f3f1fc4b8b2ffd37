"""What the component sets in the guard's environment are settings that the guard has."""

import re
from pathlib import Path

from terrace_gateway.settings import Settings

COMPONENT = Path(__file__).parents[3] / "components/terrace_components/gateway"


def test_every_name_that_the_component_sets_is_a_setting() -> None:
    text = (COMPONENT / "pod.py").read_text()
    guard = text[text.index("def _guard") : text.index("def _translator(")]
    names = set(re.findall(r'"TERRACE_([A-Z_]+)"', guard))
    assert len(names) > 5
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_every_further_setting_that_it_lets_through_is_one() -> None:
    text = (COMPONENT / "governance_gateway.py").read_text()
    listed = text[text.index("GuardSetting = Literal[") :].partition("]")[0]
    names = set(re.findall(r'"([a-z_]+)"', listed))
    assert names
    assert names <= set(Settings.model_fields)
