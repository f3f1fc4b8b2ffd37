"""The gateway's configuration files, and the addresses that they name."""

from collections.abc import Iterator

import pulumi
import yaml

from terrace_common.governance import AWS_KEY_VARIABLES, BedrockProvider, Governance
from terrace_common.translator_config import translator_config
from terrace_components.config_file import ConfigFile

GOVERNANCE_KEY = "governance.yaml"
TRANSLATOR_KEY = "translator.yaml"
DATABASE_CA_KEY = "ca.pem"


def governance_file(text: str) -> ConfigFile:
    """The governance spec, as given: line numbers in errors stay those of the author's file."""
    return ConfigFile("governance", GOVERNANCE_KEY, text)


def translator_file(governance: Governance) -> ConfigFile:
    """LiteLLM's configuration made from the spec."""
    content: str = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]
        translator_config(governance), sort_keys=True
    )
    return ConfigFile("translator", TRANSLATOR_KEY, content)


def database_ca_file(certificates: str) -> ConfigFile:
    """Certificates that a managed database's is checked against, PEM."""
    return ConfigFile("database-ca", DATABASE_CA_KEY, certificates)


def upstream_urls(governance: Governance) -> list[str]:
    """Every address that the gateway calls because of the spec, sorted, each once: for models,
    bills, guardrails, alerts and the keys of identity providers."""
    urls: set[str] = set()
    for provider in governance.providers:
        # Guardrails of kind ``bedrock`` are asked at their provider's address as well.
        if provider.kind == "openai":
            urls.add(provider.api_base)
        else:
            urls.add(
                provider.endpoint or f"https://bedrock-runtime.{provider.region}.amazonaws.com"
            )
        if provider.bill_url is not None:
            urls.add(provider.bill_url)
    urls.update(item.url for item in governance.guardrails if item.kind == "http")
    if governance.alerts is not None:
        urls.update(webhook.url for webhook in governance.alerts.webhooks)
    if governance.authentication is not None:
        # Discovery may name keys on another host; one of the cluster must be said by jwks_url.
        urls.update(item.jwks_url or item.issuer for item in governance.authentication.issuers)
    return sorted(urls)


def guard_credentials(governance: Governance, known: dict[str, str]) -> dict[str, str]:
    """Those of ``known`` that the guard itself has as files: of relayed providers, the tokens of
    webhooks and guardrails, and the access keys that a guardrail on Bedrock is asked with.

    Raises ``pulumi.InputPropertyError`` if one is not in ``known``.
    """
    needed = dict(_tokens(governance))
    for provider in governance.providers:
        if provider.kind == "openai" and provider.relay:
            needed[provider.api_key_env] = f"relayed provider {provider.name}"
    needed |= dict(_aws_keys(governance))
    missing = [f"{name} ({place})" for name, place in needed.items() if name not in known]
    if missing:
        raise pulumi.InputPropertyError(
            "provider_credentials",
            f"add {', '.join(sorted(missing))}: the governance spec names it, and the guard gets"
            " it only as variable -> key of provider_secret",
        )
    return {name: known[name] for name in sorted(needed)}


def translator_credentials(governance: Governance, known: dict[str, str]) -> dict[str, str]:
    """Those of ``known`` that the translator has: all but the tokens that only the guard shows."""
    keys = {p.api_key_env for p in governance.providers if p.kind == "openai"}
    kept = dict(_tokens(governance)).keys() - keys
    return {name: key for name, key in known.items() if name not in kept}


def _aws_keys(governance: Governance) -> Iterator[tuple[str, str]]:
    """Variables of the keys that the guard signs with, and where the spec asks for them."""
    signed = {
        provider.name
        for provider in governance.providers
        if isinstance(provider, BedrockProvider) and provider.credentials == "keys"
    }
    for item in governance.guardrails:
        if item.kind == "bedrock" and item.provider in signed:
            yield from ((name, f"guardrail {item.name}") for name in AWS_KEY_VARIABLES)


def _tokens(governance: Governance) -> Iterator[tuple[str, str]]:
    """Variables of tokens, and where the spec names them."""
    for item in governance.guardrails:
        if item.kind == "http" and item.token_env is not None:
            yield item.token_env, f"guardrail {item.name}"
    for webhook in () if governance.alerts is None else governance.alerts.webhooks:
        if webhook.token_env is not None:
            yield webhook.token_env, f"webhook {webhook.name}"
