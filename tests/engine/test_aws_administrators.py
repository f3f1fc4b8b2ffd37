"""Who administers the cluster of a stack, whoever runs Pulumi."""

from dataclasses import replace
from typing import Any

from harness import Platform
from harness.accounts import ADMINISTRATORS

ENTRY = "aws:eks/accessEntry:AccessEntry"
CREATOR = "arn:aws:iam::123456789012:role/simulated-cloud"


def test_an_administrator_who_takes_over_changes_nothing(substrate_only: Platform) -> None:
    """Who created the cluster is remembered; the entry of the administrator stays."""
    substrate = substrate_only.substrate
    caller = {"SIMULATED_CLOUD_CALLER": ADMINISTRATORS}
    engine = replace(substrate.engine, extra={**substrate.engine.extra, **caller})
    substrate.on(engine).must_be_steady()


def test_the_creator_is_refused_by_the_name_of_the_setting(substrate_only: Platform) -> None:
    def name_creator(config: dict[str, Any]) -> None:
        config["terrace:aws"]["cluster"]["admins"].append(CREATOR)

    substrate_only.change_aws(name_creator)
    before = {item.id for item in substrate_only.cloud.items(ENTRY)}
    for run in (substrate_only.substrate.preview(), substrate_only.substrate.up()):
        refused = run.must_fail()
        assert "cluster.admins" in refused.errors
        assert CREATOR in refused.errors
        assert "Traceback" not in refused.errors
    assert {item.id for item in substrate_only.cloud.items(ENTRY)} == before
    assert any(CREATOR in id for id in before)
