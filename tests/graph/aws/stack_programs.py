"""What the tests of the committed aws stacks share besides their fixtures."""

from pathlib import Path
from typing import Any

import pulumi
import pytest

ROOT = Path(__file__).resolve().parents[3]
REGION = "us-east-1"
STACKS = ("aws-stage1", "aws-private", "aws-existing-vpc")


def refused(platform: Any, **changes: Any) -> str:
    with pytest.raises(pulumi.RunError) as raised:
        platform("aws-stage1", **changes)
    message = str(raised.value)
    assert message.startswith("Pulumi.aws-stage1-platform.yaml: ")
    assert "\n" not in message
    return message.removeprefix("Pulumi.aws-stage1-platform.yaml: ")
