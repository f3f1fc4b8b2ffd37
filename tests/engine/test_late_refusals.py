"""What AWS alone can tell of a setting is told in one line: file, setting, reason."""

from pathlib import Path
from typing import Any

import pytest
from harness import Platform
from harness.accounts import VPC

ANOTHER_VPC = "vpc-0fedcba9876543210"


def told(platform: Platform) -> str:
    """What a preview that must fail says is wrong."""
    before = platform.cloud.changes()
    run = platform.substrate.preview().must_fail()
    assert "Traceback" not in run.output
    assert platform.cloud.changes() == before
    [line] = [line for line in run.errors.splitlines() if "Pulumi.aws-" in line]
    return line


def test_a_zone_that_is_not_there(nothing_yet: Platform) -> None:
    [zone] = nothing_yet.cloud.items("aws:route53/zone:Zone")
    nothing_yet.cloud.remove(zone)
    line = told(nothing_yet)
    assert "Pulumi.aws-stage1.yaml: terrace:aws.certificate.zone.id: " in line
    assert "NoSuchHostedZone" in line


def test_a_zone_without_the_name(nothing_yet: Platform) -> None:
    def elsewhere(config: dict[str, Any]) -> None:
        config["terrace:aws"]["certificate"]["domain"] = "gateway.example.org"

    nothing_yet.change_aws(elsewhere)
    line = told(nothing_yet)
    assert "terrace:aws.certificate.zone.id: " in line
    assert "example.com, without gateway.example.org" in line


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vpcId", ANOTHER_VPC),
        ("privateSubnetIds", ["subnet-0123456789abcdef0", "subnet-0eeeeeeeeeeeeeeee"]),
        ("privateSubnetIds", ["subnet-0123456789abcdef0", "subnet-0123456789abcdef0"]),
        ("cidr", "10.99.0.0/16"),
    ],
)
def test_a_network_that_is_not_as_it_was_said(tmp_path: Path, setting: str, value: Any) -> None:
    platform = Platform.new(tmp_path, "aws-existing-vpc")

    def wrong(config: dict[str, Any]) -> None:
        assert config["terrace:aws"]["network"]["existing"]["vpcId"] == VPC
        config["terrace:aws"]["network"]["existing"][setting] = value

    platform.change_aws(wrong)
    assert f"Pulumi.aws-existing-vpc.yaml: terrace:aws.network.existing.{setting}" in told(platform)
