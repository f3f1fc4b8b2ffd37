"""What the governance spec declares beyond models can be reached from the pod, with its token."""

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from terrace_components import GovernanceGateway

MODELS = """
version: 1
price_version: "1"
providers:
  - {name: p, kind: openai, api_base: "http://model.elsewhere:8000/v1", api_key_env: MODEL_KEY}
  - {name: aws, kind: bedrock, region: eu-west-1%s}
models:
  - name: one
    provider: p
    upstream_model: m
    context_tokens: 100
    max_output_tokens: 10
    price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 1}
"""
PLAIN = MODELS % ', endpoint: "http://bedrock.elsewhere:8000"'
WEBHOOK = 'alerts: {webhooks: [{name: ops, url: "%s", token_env: OPS_TOKEN}]}\n'
GUARDRAIL = 'guardrails: [{name: mine, kind: http, url: "%s", token_env: GUARD_TOKEN}]\n'
BEDROCK = """
guardrails:
  - {name: b, kind: bedrock, provider: aws, guardrail_id: abc, guardrail_version: "1",
     price: {content: 1, topic: 1, sensitive_information: 1}}
"""
ISSUER = """
authentication:
  issuers: [{name: corp, kind: oidc, audiences: [t], issuer: "%s"%s}]
"""
AWS_KEYS = {"AWS_ACCESS_KEY_ID": "aws-id", "AWS_SECRET_ACCESS_KEY": "aws-secret"}
KEYS = {"MODEL_KEY": "model-key", "OPS_TOKEN": "ops-token", "GUARD_TOKEN": "guard-token"}
ALWAYS = {("kube-system", 53), ("db", 5432), ("elsewhere", 8000)}


def gateway(governance: str, **more: Any) -> Callable[[], None]:
    resources: Any = {"cpu": "1", "memory": "1Gi", "memory_limit": "1Gi"}

    def program() -> None:
        GovernanceGateway(
            "gateway",
            {
                "namespace": "terrace-gateway",
                "guard_image": "guard:1",
                "translator_image": "translator:1",
                "governance": governance,
                "guard_resources": resources,
                "translator_resources": resources,
                "database": {"namespace": "db", "port": 5432},
                "provider_credentials": KEYS,
                **more,
            },
        )

    return program


def ways(graph: Any) -> set[tuple[str, int]]:
    """(namespace or address range, port) that the pod may call."""
    found: set[tuple[str, int]] = set()
    for rule in graph.one("NetworkPolicy").inputs["spec"]["egress"]:
        for peer in rule["to"]:
            if "ipBlock" in peer:
                who = peer["ipBlock"]["cidr"]
            else:
                who = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            found |= {(who, port["port"]) for port in rule["ports"]}
    return found


def files_of_the_guard(pod: dict[str, Any]) -> dict[str, str]:
    """File name -> key of the Secret, of what is mounted into the guard."""
    [guard] = pod["containers"]
    mounted = {mount["name"] for mount in guard["volumeMounts"]}
    return {
        item["path"]: item["key"]
        for volume in pod["volumes"]
        if volume["name"] == "relay-credentials" and volume["name"] in mounted
        for item in volume["secret"]["items"]
    }


@pytest.mark.parametrize(
    ("url", "way"),
    [
        ("https://x.example.com/a", ("0.0.0.0/0", 443)),
        ("https://x.example.com:8443/a", ("0.0.0.0/0", 8443)),
        ("https://192.0.2.7/a", ("192.0.2.7/32", 443)),
        ("https://x.inside.svc:8443/a", ("inside", 8443)),
        ("http://x.inside.svc:8080/a", ("inside", 8080)),
    ],
)
@pytest.mark.parametrize("section", [WEBHOOK, GUARDRAIL, ISSUER.replace("%s}]", "}]")])
def test_webhooks_guardrails_and_issuers_can_be_reached(
    render: Any, section: str, url: str, way: tuple[str, int]
) -> None:
    assert ways(render(gateway(PLAIN + section % url))) == ALWAYS | {way}


def test_keys_of_an_issuer_come_from_where_the_spec_says(render: Any) -> None:
    keys = ', jwks_url: "https://192.0.2.9:9443/keys"'
    graph = render(gateway(PLAIN + ISSUER % ("https://idp.example.com", keys)))
    # The issuer itself is a name then, and not asked.
    assert ways(graph) == ALWAYS | {("192.0.2.9/32", 9443)}


def test_a_spec_without_them_opens_nothing_more(render: Any) -> None:
    assert ways(render(gateway(PLAIN))) == ALWAYS


@pytest.mark.parametrize(
    ("endpoint", "way"),
    [
        ("", ("0.0.0.0/0", 443)),
        (', endpoint: "https://192.0.2.8:8443"', ("192.0.2.8/32", 8443)),
    ],
)
def test_a_bedrock_guardrail_is_reached_where_its_provider_is(
    render: Any, endpoint: str, way: tuple[str, int]
) -> None:
    governance = MODELS % endpoint + BEDROCK
    assert ways(render(gateway(governance, provider_credentials=AWS_KEYS))) == ALWAYS | {way}


@pytest.mark.parametrize(
    ("section", "variable", "key"),
    [(WEBHOOK, "OPS_TOKEN", "ops-token"), (GUARDRAIL, "GUARD_TOKEN", "guard-token")],
)
def test_a_token_is_a_file_of_the_guard_and_not_of_the_translator(
    render: Any, section: str, variable: str, key: str
) -> None:
    pod = render(gateway(PLAIN + section % "https://x.example.com")).one("StatefulSet").pod
    assert files_of_the_guard(pod) == {variable: key}
    [guard] = pod["containers"]
    environment = {entry["name"]: entry.get("value") for entry in guard["env"]}
    [mount] = [m for m in guard["volumeMounts"] if m["name"] == "relay-credentials"]
    assert environment["TERRACE_RELAY_CREDENTIALS_DIRECTORY"] == mount["mountPath"]
    [translator] = pod["initContainers"]
    names = {entry["name"] for entry in translator["env"]}
    assert variable not in names
    assert "MODEL_KEY" in names


def test_a_token_that_is_a_providers_key_as_well_stays_with_the_translator(render: Any) -> None:
    section = WEBHOOK.replace("OPS_TOKEN", "MODEL_KEY") % "https://x.example.com"
    pod = render(gateway(PLAIN + section)).one("StatefulSet").pod
    assert files_of_the_guard(pod) == {"MODEL_KEY": "model-key"}
    [translator] = pod["initContainers"]
    assert "MODEL_KEY" in {entry["name"] for entry in translator["env"]}


def test_a_bedrock_guardrail_is_signed_with_the_keys_of_its_provider(render: Any) -> None:
    """Both containers have them: the guard as files, the translator in its environment."""
    given = {**KEYS, **AWS_KEYS}
    pod = render(gateway(PLAIN + BEDROCK, provider_credentials=given)).one("StatefulSet").pod
    assert files_of_the_guard(pod) == AWS_KEYS
    [guard], [translator] = pod["containers"], pod["initContainers"]
    assert not AWS_KEYS.keys() & {entry["name"] for entry in guard["env"]}
    assert {entry["name"] for entry in translator["env"]} >= AWS_KEYS.keys()


@pytest.mark.parametrize(
    "governance",
    [PLAIN, MODELS % ", credentials: ambient" + BEDROCK],
    ids=["no guardrail", "pod identity"],
)
def test_else_the_guard_has_no_key_of_aws(render: Any, governance: str) -> None:
    given = {**KEYS, **AWS_KEYS}
    pod = render(gateway(governance, provider_credentials=given)).one("StatefulSet").pod
    assert files_of_the_guard(pod) == {}


@pytest.mark.parametrize(
    ("governance", "expected"),
    [
        (PLAIN + WEBHOOK % "https://x.example.com", "add OPS_TOKEN (webhook ops)"),
        (PLAIN + GUARDRAIL % "https://x.example.com", "add GUARD_TOKEN (guardrail mine)"),
        (
            PLAIN.replace("api_key_env", "relay: true, api_key_env"),
            "add MODEL_KEY (relayed provider p)",
        ),
        (
            PLAIN + BEDROCK,
            "add AWS_ACCESS_KEY_ID (guardrail b), AWS_SECRET_ACCESS_KEY (guardrail b)",
        ),
    ],
)
def test_a_variable_without_a_secret_is_named(render: Any, governance: str, expected: str) -> None:
    with pytest.raises(pulumi.InputPropertyError) as raised:
        render(gateway(governance, provider_credentials={}))
    assert "provider_credentials" in str(raised.value)
    assert expected in str(raised.value)
