"""From the spec's sections to guardrails."""

from terrace_common.governance import Governance
from terrace_common.governance.catalogue import BedrockProvider
from terrace_common.governance.guardrails import (
    ContentGuardrail,
    HttpGuardrail,
    PersonalDataGuardrail,
    PromptInjectionGuardrail,
    SecretsGuardrail,
)
from terrace_common.governance.guardrails import Guardrail as Declared
from terrace_gateway.guardrails.bedrock import BedrockGuard
from terrace_gateway.guardrails.content_rules import content_rules
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.guardrails.http_guard import HttpGuard
from terrace_gateway.guardrails.injection import InjectionGuard
from terrace_gateway.guardrails.local import Named, RuleGuardrail
from terrace_gateway.guardrails.personal_rules import personal_rules
from terrace_gateway.guardrails.port import Guardrail
from terrace_gateway.guardrails.scan import RuleSet
from terrace_gateway.guardrails.secret_rules import secret_rules


def build_guardrails(governance: Governance, http: GuardrailHttp) -> list[Guardrail]:
    """All that the spec declares, in its order."""
    providers = {
        provider.name: provider
        for provider in governance.providers
        if isinstance(provider, BedrockProvider)
    }
    return [_build(section, providers, http) for section in governance.guardrails]


def _build(
    section: Declared, providers: dict[str, BedrockProvider], http: GuardrailHttp
) -> Guardrail:
    named = Named(
        name=section.name,
        action=section.action,
        phases=frozenset(section.phases),
        fails_open=section.on_failure == "open",
        timeout_seconds=section.timeout_seconds,
    )
    if isinstance(section, SecretsGuardrail):
        return RuleGuardrail(named, RuleSet(secret_rules(section.rules)))
    if isinstance(section, PersonalDataGuardrail):
        rules = personal_rules(section.rules, phone_regions=section.phone_regions)
        return RuleGuardrail(named, RuleSet(rules))
    if isinstance(section, ContentGuardrail):
        return RuleGuardrail(named, RuleSet(content_rules(section)))
    if isinstance(section, PromptInjectionGuardrail):
        return InjectionGuard(named)
    if isinstance(section, HttpGuardrail):
        return HttpGuard(named, section, http)
    return BedrockGuard(named, section, providers[section.provider], http)
