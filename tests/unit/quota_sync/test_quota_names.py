"""Names of quotas against ids of models: several vendors, and names that must not match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_quota_sync.quota_names import QuotaName, keys_of, model_key, parse_quota_name

# Model id, name in words (providerName + modelName) and the name that quotas have.
SAME = [
    ("anthropic.claude-sonnet-4-5-20250929-v1:0", "Anthropic Claude Sonnet 4.5",
     "Anthropic Claude Sonnet 4.5 V1"),
    ("anthropic.claude-3-5-sonnet-20240620-v1:0", "Anthropic Claude 3.5 Sonnet",
     "Anthropic Claude 3.5 Sonnet"),
    ("anthropic.claude-3-5-sonnet-20241022-v2:0", "Anthropic Claude 3.5 Sonnet v2",
     "Anthropic Claude 3.5 Sonnet V2"),
    ("anthropic.claude-opus-4-1-20250805-v1:0", "Anthropic Claude Opus 4.1",
     "Anthropic Claude Opus 4.1"),
    ("amazon.nova-micro-v1:0", "Amazon Nova Micro", "Amazon Nova Micro"),
    ("amazon.titan-embed-text-v2:0", "Amazon Titan Text Embeddings V2",
     "Amazon Titan Text Embeddings V2"),
    ("meta.llama3-1-70b-instruct-v1:0", "Meta Llama 3.1 70B Instruct",
     "Meta Llama 3.1 70B Instruct"),
    ("mistral.mistral-large-2407-v1:0", "Mistral AI Mistral Large (24.07)",
     "Mistral Large 2407"),
    ("mistral.mistral-7b-instruct-v0:2", "Mistral AI Mistral 7B Instruct", "Mistral 7B Instruct"),
    ("cohere.command-r-plus-v1:0", "Cohere Command R+", "Cohere Command R Plus"),
    ("openai.gpt-oss-120b-1:0", "OpenAI gpt-oss-120b", "OpenAI GPT OSS 120B"),
    ("deepseek.r1-v1:0", "DeepSeek DeepSeek-R1", "DeepSeek R1 V1"),
    ("ai21.jamba-1-5-large-v1:0", "AI21 Labs Jamba 1.5 Large", "AI21 Labs Jamba 1.5 Large"),
    ("writer.palmyra-x5-v1:0", "Writer Palmyra X5", "Writer AI Palmyra X5 V1"),
]  # fmt: skip


@pytest.mark.parametrize(("model_id", "words", "in_quota"), SAME)
def test_a_quota_means_the_model_and_no_other(model_id: str, words: str, in_quota: str) -> None:
    name = parse_quota_name(f"Cross-region InvokeModel tokens per minute for {in_quota}")
    assert name is not None
    meant = [one for one, other, _ in SAME if name.model in keys_of(one, [other])]
    assert meant == [model_id], words


KINDS = [
    ("Cross-Region InvokeModel tokens per minute for M x", "cross-region", "total_tokens", 60),
    ("Cross-Region InvokeModel requests per minute for M x", "cross-region", "requests", 60),
    ("Cross-region model inference tokens per minute for M x", "cross-region", "total_tokens", 60),
    ("On-demand InvokeModel requests per minute for M x", "direct", "requests", 60),
    ("On-demand  model inference tokens per minute for M x ", "direct", "total_tokens", 60),
    ("Global cross-region model inference tokens per day for M x", "global", "total_tokens", 86400),
    ("Global Cross-Region InvokeModel requests per minute for M x", "global", "requests", 60),
    ("Model invocation max tokens per day for M x", "any", "total_tokens", 86400),
    ("Model invocation max tokens per day for M x (doubled for cross-region calls)", "any",
     "total_tokens", 86400),
    ("Global cross-region model invocation max tokens per day for M x", "global", "total_tokens",
     86400),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "dimension", "seconds"), KINDS)
def test_what_a_quota_limits(name: str, kind: str, dimension: str, seconds: int) -> None:
    found = parse_quota_name(name)
    assert found is not None
    assert (found.kind, found.dimension, found.window_seconds) == (kind, dimension, seconds)
    assert found.model == model_key("M x")


def test_the_quota_of_all_models_names_none() -> None:
    found = parse_quota_name("Cross-Model Max Tokens Per Day")
    assert found == QuotaName("region", "total_tokens", 86_400, None)


@pytest.mark.parametrize(
    "name",
    [
        "On-demand latency-optimized model inference tokens per minute for Amazon Nova Pro",
        "Model units no-commitment Provisioned Throughputs across base models",
        "Batch inference job size (in GB) for Claude 3 Haiku",
        "Sum of in-progress and submitted batch inference jobs using a base model for Nova Lite",
        "On-demand ApplyGuardrail Content filter policy text units per second",
        "Agents per account",
        "Cross-region model inference tokens per minute for ",
        "tokens per minute",
        "",
    ],
)
def test_other_quotas_limit_no_calls(name: str) -> None:
    assert parse_quota_name(name) is None


@pytest.mark.parametrize(
    ("model_id", "in_quota"),
    [
        # Longer context, another size, another version, another vendor: other quotas.
        ("anthropic.claude-sonnet-4-20250514-v1:0",
         "Anthropic Claude Sonnet 4 V1 1M Context Length"),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", "Anthropic Claude 3.5 Sonnet V2"),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "Anthropic Claude 3.5 Sonnet"),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", "Anthropic Claude Sonnet 4 V1"),
        ("anthropic.claude-3-haiku-20240307-v1:0", "Anthropic Claude 3.5 Haiku"),
        ("meta.llama3-1-8b-instruct-v1:0", "Meta Llama 3.1 70B Instruct"),
        ("amazon.nova-pro-v1:0", "Amazon Nova Premier"),
        ("acme.nova-pro-v1:0", "Amazon Nova Pro"),
    ],
)  # fmt: skip
def test_near_names_are_other_models(model_id: str, in_quota: str) -> None:
    assert model_key(model_id) != model_key(in_quota)


@given(st.text(max_size=200))
def test_any_text_is_a_name_or_none(text: str) -> None:
    parse_quota_name(text)
    parse_quota_name(f"Model invocation max tokens per day for {text}")
    words, version = model_key(text)
    assert version >= 1
    assert list(words) == sorted(words)
