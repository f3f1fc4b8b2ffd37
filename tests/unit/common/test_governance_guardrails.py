"""Sections ``guardrails`` and ``authentication`` of the governance spec."""

from importlib.resources import files

import pytest

from terrace_common.governance import Governance, GovernanceError, load_governance

pytestmark = pytest.mark.unit

EXAMPLE = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")
BEDROCK = (
    "kind: bedrock, provider: simulator-bedrock, guardrail_id: abc123, guardrail_version: '1',"
    " price: {content: 150, topic: 150, sensitive_information: 100}"
)
ARN = "'arn:aws:bedrock:us-east-1:123456789012:guardrail/abc123'"


def load(text: str) -> Governance:
    return load_governance(EXAMPLE + text, "g.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(GovernanceError) as caught:
        load(text)
    return [what for _, what in caught.value.problems]


def test_every_kind_is_read() -> None:
    found = load(f"""
guardrails:
  - {{name: a, kind: secrets}}
  - {{name: b, kind: personal_data, rules: [email, card], phone_regions: [DE]}}
  - {{name: c, kind: prompt_injection, action: block}}
  - {{name: d, kind: content, words: [project zeus]}}
  - {{name: e, {BEDROCK}}}
  - {{name: f, kind: http, url: "https://guard.acme.example/check", timeout_seconds: 0.5}}
  - {{name: g, {BEDROCK.replace("abc123", ARN)}}}
""")
    assert found.guardrail_names == ("a", "b", "c", "d", "e", "f", "g")
    assert [item.on_failure for item in found.guardrails] == ["closed"] * 7
    assert found.guardrails[2].phases == ("before",)


def test_a_policy_names_declared_guardrails_only() -> None:
    text = "policies: [{name: p, guardrails: [nope]}]\nguardrails: [{name: a, kind: secrets}]\n"
    assert any("'nope' is not declared" in what for what in problems(text))


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("{name: a, kind: secrets, rules: [nope]}", "rules.0"),
        ("{name: a, kind: content}", "needs words or patterns"),
        ("{name: a, kind: content, patterns: [{name: x, pattern: 'a*'}]}", "no bound"),
        ("{name: a, kind: prompt_injection, action: mask}", "action"),
        ("{name: a, kind: prompt_injection, phases: [after]}", "phases"),
        (
            f"{{name: a, {BEDROCK.replace('simulator-bedrock', 'simulator-openai')}}}",
            "Bedrock prov",
        ),
        (f"{{name: a, {BEDROCK.replace(', topic: 150', '')}}}", "topic is required"),
        (
            f"{{name: a, {BEDROCK.replace('abc123', ARN.replace('us-east-1', 'us-west-2'))}}}",
            "guardrail_id is of region us-west-2, and provider 'simulator-bedrock' calls us-east-1",
        ),
        ("{name: a, kind: http, url: 'https://u:p@guard.acme.example'}", "without a user"),
        ("{name: a, kind: secrets, timeout_seconds: 0}", "timeout_seconds"),
        ("{name: a, kind: secrets}\n  - {name: a, kind: secrets}", "given twice"),
        (
            "{name: a, kind: content, patterns: [{name: x, pattern: ab}, {name: x, pattern: cd}]}",
            "given twice",
        ),
    ],
)
def test_a_wrong_guardrail_is_refused(section: str, why: str) -> None:
    assert any(why in what for what in problems(f"guardrails:\n  - {section}\n"))


ISSUER = "name: corp, kind: oidc, issuer: 'https://login.acme.example', audiences: [terrace]"


@pytest.mark.parametrize(
    ("issuers", "why"),
    [
        (f"{{{ISSUER}, algorithms: [HS256]}}", "algorithms"),
        (f"{{{ISSUER}, algorithms: [none]}}", "algorithms"),
        (f"{{{ISSUER}, teams: [{{value: a, team: b}}]}}", "team_claim"),
        (f"{{{ISSUER}, admins: [{{value: a, role: admin}}]}}", "role_claim"),
        (f"{{{ISSUER}, team_claim: g, teams: [{{value: a, team: nope}}]}}", "'nope'"),
        (f"{{{ISSUER}, require_claims: ['']}}", "require_claims.0.claim"),
        (f"{{{ISSUER}, require_claims: [{{claim: acr, value: true}}]}}", "require_claims.0.value"),
        (f"{{{ISSUER}}}, {{{ISSUER}}}", "given twice"),
        (f"{{{ISSUER.replace('https://login.acme', 'http://login.acme')}}}", "https"),
        (
            "{name: c, kind: kubernetes, issuer: 'https://k.example', audiences: [t],"
            " workloads: [{namespace: n, service_account: s, app: nope}]}",
            "'nope'",
        ),
    ],
)
def test_a_wrong_issuer_is_refused(issuers: str, why: str) -> None:
    assert any(why in what for what in problems(f"authentication: {{issuers: [{issuers}]}}\n"))


def test_an_issuer_inside_of_the_cluster_or_of_this_machine_may_be_plain_http() -> None:
    for host in ("127.0.0.1:8080", "localhost", "idp.acme.svc", "idp.acme.svc.cluster.local"):
        text = ISSUER.replace("https://login.acme.example", f"http://{host}")
        assert load(f"authentication: {{issuers: [{{{text}}}]}}\n").authentication is not None
