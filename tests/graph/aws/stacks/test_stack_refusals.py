"""What the platform's program refuses to stand on, in one sentence each."""

from typing import Any

import pulumi_aws
import pytest

from ..stack_programs import refused


@pytest.mark.parametrize("version", [None, 2, "1"])
def test_an_output_of_another_release_names_the_stack_to_update(
    platform: Any, version: Any
) -> None:
    message = refused(platform, told={"version": version})
    assert f"has version {version!r}" in message.replace("2.0", "2")
    assert message.endswith("run `pulumi up --stack aws-stage1` with this release first")


def test_an_output_that_lacks_something_names_it(platform: Any) -> None:
    message = refused(platform, told={"cluster": {"name": "x"}})
    assert "cluster.kubeconfig: Field required" in message


def test_a_substrate_in_another_region_is_refused(platform: Any) -> None:
    message = refused(platform, told={"region": "eu-west-1"})
    assert message == ("aws:region: is us-east-1, but stack 'aws-stage1' stands in eu-west-1")


def test_a_substrate_in_another_account_is_refused(platform: Any) -> None:
    message = refused(platform, told={"account": "210987654321"})
    assert message.startswith(
        "stack 'aws-stage1' stands in account 210987654321, but these credentials are of account "
        "123456789012: "
    )


def test_credentials_that_aws_refuses_are_told(
    platform: Any, substrate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    substrate("aws-stage1")

    def expired() -> Any:
        raise RuntimeError("ExpiredToken")

    monkeypatch.setattr(pulumi_aws, "get_caller_identity", expired)
    message = refused(platform, told={})
    assert message == "AWS does not say whose these credentials are: ExpiredToken"


def test_an_image_that_the_registry_lacks_is_named(platform: Any) -> None:
    message = refused(platform, told={"registry": {}})
    assert message.startswith("the substrate has no image ")
