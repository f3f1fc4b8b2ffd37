"""The schema under which other languages see the components."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pulumi.provider.experimental.component import ComponentProvider

from terrace_components import COMPONENTS, PACKAGE, VERSION

COMMITTED = Path(__file__).resolve().parents[2] / "components" / "schema.json"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(ComponentProvider(list(COMPONENTS), PACKAGE, version=VERSION).schema)


def test_the_schema_is_the_committed_one(schema: dict[str, Any]) -> None:
    text = json.dumps(schema, indent=2, sort_keys=True) + "\n"
    if os.environ.get("RECORD_SNAPSHOTS") == "1":
        COMMITTED.write_text(text)
    assert json.loads(COMMITTED.read_text()) == json.loads(text), (
        "the public arguments changed; if that is meant, RECORD_SNAPSHOTS=1 pytest tests/graph"
    )


def test_tokens_are_those_that_are_in_peoples_state(schema: dict[str, Any]) -> None:
    """A renamed token replaces resources: it needs an alias and a line here."""
    assert sorted(schema["resources"]) == [
        "terrace:index:AdmissionPolicies",
        "terrace:index:AwsBucket",
        "terrace:index:AwsCertificate",
        "terrace:index:AwsCluster",
        "terrace:index:AwsClusterAddOns",
        "terrace:index:AwsDatabase",
        "terrace:index:AwsKeys",
        "terrace:index:AwsLoadBalancer",
        "terrace:index:AwsLoadBalancerController",
        "terrace:index:AwsNetwork",
        "terrace:index:AwsNodeGroup",
        "terrace:index:AwsPodIdentity",
        "terrace:index:AwsRegistry",
        "terrace:index:BedrockAccess",
        "terrace:index:BedrockInvocationLogs",
        "terrace:index:DatabaseRole",
        "terrace:index:FoundationAws",
        "terrace:index:FoundationLocal",
        "terrace:index:GovernanceGateway",
        "terrace:index:ModelSimulator",
        "terrace:index:Observability",
        "terrace:index:PersistentVolume",
        "terrace:index:Postgres",
        "terrace:index:QuotaSync",
        "terrace:index:SecretBootstrap",
        "terrace:index:SecureNamespace",
        "terrace:index:TargetGroupBinding",
    ]


def test_every_argument_and_output_is_described(schema: dict[str, Any]) -> None:
    for token, resource in schema["resources"].items():
        described = {**resource["inputProperties"], **resource["properties"]}
        assert described, token
        for name, entry in described.items():
            assert entry.get("description"), f"{token} {name}"
    for token, kind in schema["types"].items():
        for name, entry in kind["properties"].items():
            assert entry.get("description"), f"{token} {name}"
