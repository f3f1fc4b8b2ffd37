"""The local substrate: from what the cluster publishes to the contract that layers see."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from terrace_blueprints.substrates.contract import SubstrateError
from terrace_blueprints.substrates.local import read_local_substrate
from terrace_common.names import IMAGES


def published(**changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "kubeconfig": "/somewhere/kubeconfig",
        "cluster_identifier": "terrace-local-0a1b2c3d",
        "node_name": "a-node",
        "node_address": "192.0.2.9",
        "volumes_root": "/somewhere/volumes",
        "images": {name: f"terrace.local/{name}:0123456789abcdef" for name in IMAGES},
        "isolation": "runc",
    } | changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "substrate.json"


def test_facts_become_the_contract(file: Path) -> None:
    file.write_text(json.dumps(published()))
    substrate = read_local_substrate(file)
    assert substrate.cluster.kubeconfig == "/somewhere/kubeconfig"
    assert substrate.cluster.identifier == "terrace-local-0a1b2c3d"
    assert substrate.cluster.belongs_to_stack
    assert substrate.cluster.api == {"cidr": "192.0.2.9/32", "port": 6443}
    assert substrate.postgres.storage == {
        "size": "4Gi",
        "node": "a-node",
        "path": "/somewhere/volumes/postgres",
    }
    assert substrate.images.ref("gateway") == "terrace.local/gateway:0123456789abcdef"
    assert substrate.exposure.url("gateway") == "http://192.0.2.9:30400"
    assert set(substrate.scheduling) == {"core"}


def test_the_contract_is_plain_data(file: Path) -> None:
    """It must cross a StackReference."""
    file.write_text(json.dumps(published()))
    json.dumps(dataclasses.asdict(read_local_substrate(file)))


def test_no_cluster_says_how_to_get_one(file: Path) -> None:
    with pytest.raises(SubstrateError, match=r"cannot read .*substrate.json.*`make up`"):
        read_local_substrate(file)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "JSON"),
        ("[]", "the file"),
        ("\x00\x01garbage", "JSON"),
        (json.dumps(published(version=2)), "version"),
        (json.dumps(published(cluster_identifier="x")), "cluster_identifier"),
        (json.dumps(published(surprise=1)), "surprise"),
        (json.dumps(published())[:-20], "JSON"),
    ],
)
def test_a_file_that_is_not_right_is_named(file: Path, content: str, where: str) -> None:
    file.write_text(content)
    with pytest.raises(SubstrateError) as raised:
        read_local_substrate(file)
    assert str(file) in str(raised.value)
    assert where in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_images_are_named(file: Path) -> None:
    images = {k: v for k, v in published()["images"].items() if k not in {"gateway", "postgres"}}
    file.write_text(json.dumps(published(images=images)))
    with pytest.raises(SubstrateError, match=r"not built yet: gateway, postgres"):
        read_local_substrate(file)


def test_an_unknown_image_is_refused_with_those_there_are(file: Path) -> None:
    file.write_text(json.dumps(published()))
    with pytest.raises(SubstrateError, match=r"no image 'gatewy'; it has: gateway, "):
        read_local_substrate(file).images.ref("gatewy")
