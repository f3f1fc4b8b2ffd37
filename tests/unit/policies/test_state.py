"""What `pulumi stack export` wrote is checked without Pulumi."""

import json
from typing import Any

import pytest

from terrace_policies.checking import check_state
from terrace_policies.configuration import Configuration
from terrace_policies.resources import ENCRYPTED, Unknown
from terrace_policies.state import SECRET, SIGNATURE, StateError, property_tree, read_state

KEY = "aws:kms/key:Key"


def entry(kind: str, name: str, **more: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:prod::terrace::terrace:index:AwsKeys${kind}::{name}"
    return {"urn": urn, "type": kind, "id": f"{name}-id", "inputs": {}, "outputs": {}, **more}


def export(*resources: dict[str, Any]) -> str:
    return json.dumps({"version": 3, "deployment": {"resources": list(resources)}})


def test_rules_run_on_inputs_and_stack_rules_on_the_state() -> None:
    bucket = entry("aws:s3/bucket:Bucket", "logs", outputs={"bucket": "logs-0a1b2c3"})
    key = entry(KEY, "key", inputs={"enableKeyRotation": False})
    block = entry(
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock", "block",
        inputs={"bucket": "logs-0a1b2c3", "blockPublicAcls": True, "blockPublicPolicy": True,
                "ignorePublicAcls": True, "restrictPublicBuckets": True},
    )  # fmt: skip
    report = check_state(export(bucket, key, block), "state.json", Configuration())
    assert report.resources == 3
    ids = {result.rule.id for result in report.violations}
    assert "key-rotated" in ids
    assert "bucket-versioned" in ids
    assert "bucket-not-public" not in ids


def test_what_is_on_its_way_out_is_not_checked() -> None:
    old = entry(KEY, "key", delete=True)
    assert check_state(export(old), "s", Configuration()).violations == []


def test_an_encrypted_secret_is_unchecked_and_an_opened_one_is_checked() -> None:
    kind = "kubernetes:core/v1:ConfigMap"
    hidden = {SIGNATURE: SECRET, "ciphertext": "v1:abc"}
    opened = {SIGNATURE: SECRET, "plaintext": json.dumps("key: sk-0123456789abcdef0123")}

    def config_map(value: Any) -> dict[str, Any]:
        inputs = {"kind": "ConfigMap", "metadata": {"namespace": "a"}, "data": {"a": value}}
        return entry(kind, "m", inputs=inputs)

    report = check_state(export(config_map(hidden)), "s", Configuration())
    assert report.violations == []
    assert {r.rule.id for r in report.unchecked} == {"config-map-without-secrets"}
    assert ENCRYPTED in report.unchecked[0].text
    report = check_state(export(config_map(opened)), "s", Configuration())
    assert {r.rule.id for r in report.violations} == {"config-map-without-secrets"}


def test_marks_of_unknown_values_are_unknown() -> None:
    tree = property_tree({"a": ["04da6b54-80e4-46f7-96ec-b56ff0331ba9", "b"], "c": {"d": 1}})
    assert tree == {"a": [Unknown(), "b"], "c": {"d": 1}}


def test_a_resource_has_its_name_type_and_dependencies() -> None:
    inputs, stack = read_state(export(entry(KEY, "key", propertyDependencies={"a": ["u"]})), "s")
    (resource,) = inputs
    assert (resource.name, resource.type, resource.stack_name) == ("key", KEY, "prod")
    assert stack.resources[0].get("id") == "key-id"
    assert stack.resources[0].dependencies == {"a": ["u"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no", "state.json: not JSON"),
        ("[]", "give the output of `pulumi stack export`"),
        ('{"version": 3}', "give the output of `pulumi stack export`"),
        ('{"deployment": {"resources": {}}}', "give the output of `pulumi stack export`"),
        ('{"deployment": {"resources": [{}]}}', "deployment.resources[0] has no urn"),
    ],
)
def test_what_is_no_export_is_refused(text: str, said: str) -> None:
    with pytest.raises(StateError) as error:
        read_state(text, "state.json")
    assert said in str(error.value)


def test_an_empty_stack_is_an_export_too() -> None:
    assert check_state(export(), "s", Configuration()).resources == 0
    # As the CLI writes it before the first update.
    text = '{"version": 3, "deployment": {"manifest": {}}}'
    assert check_state(text, "s", Configuration()).resources == 0
