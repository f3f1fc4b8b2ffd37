"""What the README says is so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from account import Account, Refused

from simulated_cloud import command_line, faults
from simulated_cloud.aws.catalogue import MODELS
from simulated_cloud.aws.model import ArnOf, AwsModel
from simulated_cloud.models import AutoName, Link
from simulated_cloud.rules import matches

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def topic() -> Iterator[str]:
    """The model of the README, installed."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {
        "ArnOf": ArnOf,
        "AutoName": AutoName,
        "AwsModel": AwsModel,
        "Link": Link,
        "matches": matches,
    }
    exec(code, names)
    model = names["Topic"]()
    MODELS[model.token] = model
    yield model.token
    del MODELS[model.token]


def test_the_model_of_the_readme_works(account: Account, topic: str) -> None:
    made = account.create(topic, {"name": "news", "tags": {"a": "b"}})
    assert made["arn"] == "arn:aws:sns:us-east-1:123456789012:news"
    assert "letters, digits" in account.check(topic, {"name": "n s"})[1]["name"]
    with pytest.raises(Refused, match="exists already"):
        account.create(topic, {"name": "news"})
    with pytest.raises(Refused, match="does not exist"):
        account.create(topic, {"name": "other", "kmsMasterKeyId": "nothing"})


def test_the_readme_names_every_fault_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) == 7
    for word in (*faults.KINDS, *commands):
        assert f"`{word}" in README
