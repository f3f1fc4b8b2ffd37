"""Our own stacks keep our own rules: every golden graph passes, with the settings that we ship."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from policy_trials import broken, check

from terrace_policies.book import rules
from terrace_policies.configuration import Configuration, read_configuration
from terrace_policies.resources import Resource, Stack

ROOT = Path(__file__).resolve().parents[3]
SNAPSHOTS = ROOT / "tests/graph/snapshots"
# Golden graph -> the policy settings that are committed for that stack.
STACKS = {
    "stage-1-local": "local.yaml",
    "stage-1-existing": "existing.yaml",
    "aws-stage1": None,
    "aws-stage1-platform": None,
    "aws-private": None,
    "aws-private-platform": None,
    "aws-existing-vpc": None,
    "aws-existing-vpc-platform": None,
}


def rows_of(name: str) -> list[dict[str, Any]]:
    return json.loads((SNAPSHOTS / f"{name}.json").read_text())


def stack_of(rows: list[dict[str, Any]], stack: str = "trial") -> Stack:
    """A golden graph as a stack. It has the ids that mocks made up in place of dependencies, so
    a bucket is what the other resources of its component name."""
    return Stack([
        Resource(
            row["inputs"], type=row["type"], name=row["name"],
            urn=f"urn:pulumi:{stack}::terrace::{row['type']}::{row['name']}",
            dependencies=_dependencies(row, rows, stack),
        )
        for row in rows
    ])  # fmt: skip


def _dependencies(
    row: dict[str, Any], rows: list[dict[str, Any]], stack: str
) -> dict[str, list[str]]:
    targets = {"bucket": "aws:s3/bucket:Bucket", "vpcId": "aws:ec2/vpc:Vpc"}
    return {
        key: [
            f"urn:pulumi:{stack}::terrace::{kind}::{other['name']}"
            for other in rows
            if other["type"] == kind and other["parent"] == row["parent"]
        ]
        for key, kind in targets.items()
        if key in row["inputs"]
    }


def shipped(settings: str | None) -> Configuration:
    if settings is None:
        return Configuration()
    text = (ROOT / "policies" / settings).read_text()
    return read_configuration(text, settings, rules(), date(2026, 11, 30))


@pytest.mark.parametrize("name", STACKS)
def test_our_stacks_pass(name: str) -> None:
    configuration = shipped(STACKS[name])
    assert configuration.problems == []
    results = check(stack_of(rows_of(name), name.removeprefix("stage-1-")), configuration)
    said = [r.text for r in results if r.level.value == "mandatory" or r.unchecked]
    assert said == []


def test_the_settings_of_the_local_stack_are_needed() -> None:
    found = broken(check(stack_of(rows_of("stage-1-local"))))
    assert found == {"litellm-memory-floor", "service-not-exposed"}


@pytest.mark.parametrize("pool", ["10", "45"])
def test_connections_of_the_local_database_are_counted(pool: str) -> None:
    rows = rows_of("stage-1-local")
    for row in rows:
        if row["name"] in {"gateway-deployment", "gateway-replicas"}:
            (guard,) = row["inputs"]["spec"]["template"]["spec"]["containers"]
            guard["env"].append({"name": "TERRACE_DATABASE_POOL_SIZE", "value": pool})
    said = "database-connections-fit" in broken(check(stack_of(rows)))
    assert said is (pool == "45")
