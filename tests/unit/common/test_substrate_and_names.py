"""Names and the substrate file are contracts: a change here is a change of docs/contracts.md."""

import pytest
from pydantic import ValidationError

from terrace_common import names
from terrace_common.substrate import LocalSubstrateFile

FILE = {
    "version": 1,
    "kubeconfig": "/var/lib/terrace/kubeconfig",
    "cluster_identifier": "terrace-local-0123abcd",
    "node_name": "terrace-local",
    "node_address": "10.89.0.1",
    "volumes_root": "/var/lib/terrace/volumes",
    "images": {name: f"terrace.local/{name}:0123456789abcdef" for name in names.IMAGES},
    "isolation": "runc",
}


def test_the_contracts_example_loads() -> None:
    substrate = LocalSubstrateFile.model_validate(FILE)
    assert substrate.missing_images() == ()
    assert LocalSubstrateFile.model_validate_json(substrate.model_dump_json()) == substrate


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"cluster_identifier": "other"},
        {"images": {"gateway": "no-tag"}},
        {"isolation": "none"},
        {"unknown": 1},
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LocalSubstrateFile.model_validate({**FILE, **change})


def test_services() -> None:
    assert names.GATEWAY.url == "http://gateway.terrace-gateway:8080"
    assert (names.GATEWAY.node_port, names.GATEWAY_ADMIN.node_port) == (30400, 30401)
    assert names.POSTGRES.host == "postgres.terrace-foundation"
