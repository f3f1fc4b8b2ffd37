"""The section `alerts` of the spec."""

import pytest

from terrace_common.governance import GovernanceError, load_governance
from terrace_common.governance.differences import differences

from .governance_specs import CATALOGUE

HOOK = "{name: ops, url: 'https://hooks.example.com/terrace', token_env: OPS_TOKEN}"


def test_webhooks_are_read() -> None:
    spec = load_governance(f"{CATALOGUE}\nalerts: {{webhooks: [{HOOK}]}}\n", "g.yaml")
    assert spec.alerts is not None
    (webhook,) = spec.alerts.webhooks
    assert (webhook.name, webhook.token_env) == ("ops", "OPS_TOKEN")
    assert load_governance(CATALOGUE, "g.yaml").alerts is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{webhooks: []}", "at least 1"),
        ("{}", "webhooks is required"),
        ("{hooks: []}", "valid keys here: webhooks"),
        (f"{{webhooks: [{HOOK}, {HOOK}]}}", "webhook 'ops' is given twice"),
        ("{webhooks: [{name: ops, url: 'http://hooks.example.com/'}]}", "https only"),
        (
            "{webhooks: [{name: ops, url: 'https://me:secret@hooks.example.com/'}]}",
            "without a user",
        ),
        ("{webhooks: [{name: ops, url: 'ftp://hooks.example.com/'}]}", "http(s)://"),
        ("{webhooks: [{name: ops, url: 'https://x.example.com', token: abc}]}", "token_env"),
        ("{webhooks: [{name: ops, url: 'https://x.example.com', token_env: a}]}", "upper-case"),
    ],
)
def test_what_is_wrong_names_its_line(section: str, words: str) -> None:
    with pytest.raises(GovernanceError) as caught:
        load_governance(f"{CATALOGUE.rstrip()}\nalerts: {section}\n", "g.yaml")
    line = CATALOGUE.rstrip().count("\n") + 2
    assert f"g.yaml:{line}:" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://hooks.ops.svc/alerts", "http://127.0.0.1:9000/", "http://hooks.ops.svc:8080/"]
)
def test_services_of_the_cluster_may_be_plain(url: str) -> None:
    load_governance(f"{CATALOGUE}\nalerts: {{webhooks: [{{name: ops, url: '{url}'}}]}}\n", "g.yaml")


def test_a_change_of_webhooks_is_in_the_plan() -> None:
    old = load_governance(CATALOGUE, "g.yaml")
    new = load_governance(f"{CATALOGUE}\nalerts: {{webhooks: [{HOOK}]}}\n", "g.yaml")
    (change,) = differences(old, new)
    assert (change.action, change.name) == ("added", "alerts")
