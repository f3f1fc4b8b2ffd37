"""Settings of a stack on somebody's cluster."""

from copy import deepcopy
from typing import Any

import pytest

from terrace_blueprints.settings import Settings, SettingsError, load_settings

FILE = "Pulumi.existing.yaml"
IMAGES = {
    name: f"registry.example.com/{name}:1.0"
    for name in (
        "gateway", "translator", "prometheus", "secret-bootstrap", "postgres", "model-simulator",
    )
}  # fmt: skip
CLUSTER: dict[str, Any] = {
    "context": "dev",
    "kubernetesApi": {"cidr": "192.0.2.1/32", "port": 6443},
    "storage": {"class": "standard"},
    "simulateProviders": True,
}


def load(cluster: dict[str, Any] | None = None, **keys: Any) -> Settings:
    """The settings with these keys of ``terrace:existing`` (``None``: without that key)."""
    existing = {k: v for k, v in (deepcopy(CLUSTER) | (cluster or {})).items() if v is not None}
    given = {"substrate": "existing", "existing": existing, "images": IMAGES} | keys
    return load_settings({f"terrace:{k}": v for k, v in given.items() if v is not None}, FILE)


def refused(cluster: dict[str, Any] | None = None, **keys: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        load(cluster, **keys)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{FILE}: terrace:")
    return message.removeprefix(f"{FILE}: terrace:")


def test_everything_has_a_value() -> None:
    settings = load()
    assert settings.existing is not None
    assert settings.existing.kubeconfig == "~/.kube/config"
    assert settings.existing.kubernetes_api.port == 6443
    assert settings.existing.sizes == "production"
    assert settings.gateway.min_replicas == 2


def test_a_section_may_arrive_as_json_text() -> None:
    import json

    settings = load(existing=json.dumps(CLUSTER), images=json.dumps(IMAGES))
    assert settings == load()
    assert refused(existing="context: dev") == "existing: must be a YAML mapping"


def test_the_cluster_must_be_named() -> None:
    assert "existing: is required" in refused(existing=None)
    assert refused({"context": None}) == "existing.context: is required"
    assert refused({"kubernetesApi": None}) == "existing.kubernetesApi: is required"


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"contxt": "x"}, "existing.contxt: unknown key; did you mean context?"),
        ({"kubernetes_api": {}}, "existing.kubernetes_api: unknown key; did you mean kubern"),
        ({"kubernetesApi": {"cdir": "x", "cidr": "192.0.2.1/32"}}, "existing.kubernetesApi.cdir"),
        ({"kubernetesApi": 3}, "existing.kubernetesApi: must be a YAML mapping"),
        ({"kubernetesApi": {"cidr": "home"}}, "existing.kubernetesApi.cidr: must be an address"),
        ({"kubernetesApi": {"cidr": "192.0.2.1/24"}}, "existing.kubernetesApi.cidr: must be"),
        ({"kubernetesApi": {"cidr": "192.0.2.1/32", "port": 0}}, "existing.kubernetesApi.port"),
        ({"storage": {}}, "existing.storage: must be {class} or {node, path}"),
        ({"storage": {"node": "n"}}, "existing.storage: must be {class} or {node, path}"),
        ({"storage": {"class": "a", "node": "n", "path": "/p"}}, "existing.storage: must be"),
        ({"storage": {"node": "n", "path": "p"}}, "existing.storage.path: must be an absolute"),
        ({"storage": None}, "existing: storage is required ({class} or {node, path})"),
        ({"sizes": "big"}, "existing.sizes: Input should be 'evaluation' or 'production'"),
        ({"isolation": "none"}, "existing.isolation: Input should be 'runc', 'gvisor' or 'kata'"),
        ({"exposure": {"address": "x", "nodePorts": {"gatway": 30000}}}, "existing.exposure.node"),
        ({"exposure": {"address": "x", "nodePorts": {"gateway": 80}}}, "existing.exposure.nodeP"),
        ({"exposure": {"address": "x", "nodePorts": {}}}, "existing.exposure.nodePorts"),
        (
            {"database": {"host": "db.example.com", "adminSecret": "a/b"}},
            "existing.database: cidr is required, because host 'db.example.com' is a name",
        ),
        ({"database": {"host": "192.0.2.2", "adminSecret": "b"}}, "existing.database.adminSecret"),
        ({"database": {"host": "http://x", "adminSecret": "a/b"}}, "existing.database.host: must"),
    ],
)
def test_what_is_wrong_is_named(cluster: dict[str, Any], said: str) -> None:
    assert refused(cluster).startswith(said)


def test_an_address_needs_no_range() -> None:
    existing = load({"database": {"host": "192.0.2.2", "adminSecret": "a/b"}}).existing
    assert existing is not None
    assert existing.database is not None
    assert existing.database.address_range == "192.0.2.2/32"


def test_images_that_are_missing_are_named() -> None:
    some = {k: v for k, v in IMAGES.items() if k not in {"postgres", "gateway"}}
    assert refused(images=some).endswith("is missing for: gateway, postgres")
    assert "images: a reference" in refused(images=None)


def test_a_given_database_and_real_providers_need_fewer_images() -> None:
    some = {k: v for k, v in IMAGES.items() if k not in {"postgres", "model-simulator"}}
    database = {"host": "192.0.2.2", "adminSecret": "a/b"}
    load(
        {"database": database, "simulateProviders": False, "storage": None},
        images=some,
        governanceFile="mine.yaml",
    )


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ({"gatway": "x/y:1"}, "'gatway' is no image (did you mean 'gateway'?); valid: gateway, "),
        ({"gateway": "registry.example.com/gateway"}, "images.gateway: must name one image by tag"),
        ({"gateway": "registry.example.com/gateway:latest"}, "must name one image by tag or dig"),
        ({"gateway": "a b:1"}, "images.gateway: "),
    ],
)
def test_an_image_is_one_content(images: dict[str, str], said: str) -> None:
    assert said in refused(images=IMAGES | images)


def test_real_providers_need_a_governance_spec() -> None:
    message = refused({"simulateProviders": False})
    assert message.startswith("governanceFile: is required, unless terrace:existing.simulateProv")


@pytest.mark.parametrize(
    ("gateway", "said"),
    [
        ({"minReplicas": 0}, "gateway.minReplicas"),
        ({"minReplicas": 5, "maxReplicas": 4}, "gateway: maxReplicas must be minReplicas (5) or"),
        ({"replicas": 2}, "gateway.replicas: unknown key; did you mean m"),
        ([], "gateway: must be a YAML mapping"),
    ],
)
def test_scale(gateway: Any, said: str) -> None:
    assert refused(gateway=gateway).startswith(said)


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ({}, "providerSecrets.KEY: must be {arn}"),
        ({"secret": "a/b"}, "providerSecrets.KEY: must be {arn}"),
        ({"secret": "b", "key": "k"}, "providerSecrets.KEY.secret: must be namespace/name"),
        ({"secret": "a/b", "key": "k", "jsonKey": "j"}, "providerSecrets.KEY: must be {arn}"),
        (
            {"arn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:x-1"},
            "providerSecrets.KEY: must be {secret: namespace/name, key} on existing",
        ),
    ],
)
def test_a_providers_key_is_in_a_secret_of_the_cluster(secret: dict[str, Any], said: str) -> None:
    assert refused(providerSecrets={"KEY": secret}).startswith(said)


@pytest.mark.parametrize("name", ["openai", "1A", "A-B", ""])
def test_a_providers_key_goes_into_an_environment_variable(name: str) -> None:
    message = refused(providerSecrets={name: {"secret": "a/b", "key": "k"}})
    assert "must be upper-case letters, digits and '_'" in message


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("aws", {}, "aws substrate"),
        ("substrateStack", "x", "aws platform"),
        ("substrateFile", "/x", "local"),
    ],
)
def test_keys_of_other_substrates_are_refused(key: str, value: Any, place: str) -> None:
    assert refused(**{key: value}) == f"{key}: belongs to {place}; this stack is existing"


def test_the_other_way_round_too() -> None:
    with pytest.raises(SettingsError, match=r"terrace:existing: belongs to existing; this stack"):
        load_settings({"terrace:existing": CLUSTER}, FILE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("captureKeyArn", "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d"),
        ("earlierCaptureKeyArns", []),
        ("anchors", {}),
    ],
)
def test_what_the_gateways_role_at_aws_is_for_needs_one(key: str, value: Any) -> None:
    message = refused(gateway={key: value})
    assert message == f"gateway.{key}: belongs to aws platform: pods have no identity at AWS here"
