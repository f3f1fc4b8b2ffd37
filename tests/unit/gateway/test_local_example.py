"""Which example of governance a local gateway can take: planned against what it is started with."""

from importlib.resources import files
from pathlib import Path

from terrace_common.governance import load_governance
from terrace_common.governance.effects import plan_change
from terrace_common.governance.plan import Facts, LiveKey
from terrace_gateway.policy.deployed import Deployed

EXAMPLES = Path(__file__).parents[3] / "examples/governance"
IN_FORCE = (files("terrace_common") / "examples/governance.local.yaml").read_text("utf-8")
DEPLOYED = load_governance(IN_FORCE, "governance.local.yaml")
# The key of the README's tour, and one as `terrace smoke` makes them, of a team of its own.
KEYS = (
    LiveKey("key_1", "demo", models=frozenset({"sim-small"})),
    LiveKey("key_2", "smoke-0a1b2c3d", models=frozenset({"sim-small", "bedrock-claude"})),
)


def test_the_local_example_applies_to_the_local_stack_without_an_allowance() -> None:
    text = (EXAMPLES / "local.yaml").read_text()
    example = load_governance(text, "local.yaml")
    assert Deployed(DEPLOYED).missing(example) == {}
    plan = plan_change(DEPLOYED, example, Facts(keys=KEYS), new_text=text)
    assert plan.changes
    assert plan.blocking == ()


def test_the_other_example_is_of_other_models() -> None:
    """As its first lines say."""
    text = (EXAMPLES / "governance.yaml").read_text()
    example = load_governance(text, "governance.yaml")
    assert set(Deployed(DEPLOYED).missing(example)) == {model.name for model in example.models}
    assert "local.yaml" in text.partition("version: 1")[0]
