"""The governance spec: what is right loads, what is wrong is named with file and line."""

from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.translator_config import translator_config

TEXT = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")


def line_of(fragment: str, text: str = TEXT) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if fragment in line)


@pytest.fixture
def governance() -> Governance:
    return load_governance(TEXT, "governance.yaml")


def test_models_are_found_by_name_and_alias(governance: Governance) -> None:
    by_name = governance.find_model("bedrock-claude")
    assert by_name is not None
    assert governance.find_model("anthropic.claude-sonnet-4-5-20250929-v1:0") == by_name
    assert governance.provider_of(by_name).kind == "bedrock"
    assert governance.find_model("sim-unknown") is None


def test_output_is_clamped(governance: Governance) -> None:
    model = governance.find_model("sim-small")
    assert model is not None
    assert governance.output_limit(model, None) == 1024
    assert governance.output_limit(model, 5) == 5
    assert governance.output_limit(model, 10**9) == 4096


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "region:",
            "regoin:",
            "regoin",
            "valid keys here: bill_url, breaker, credentials, endpoint, kind, ",
        ),
        ("price_version:", "prise_version:", "prise", "unknown key 'prise_version'"),
        ("aliases:", "alias:", "alias:", "valid keys here: aliases, base_model, "),
        ("{max_output_tokens: 1024", "{max_tokens: 1024", "max_tokens:", "hard_stream_limit"),
        ("150000", '"150000"', '"150000"', "valid integer"),
        ("150000", "-1", "-1", "greater than or equal to 0"),
        ("150000", "0.15", "0.15", "valid integer"),
        (
            "provider: simulator-bedrock",
            "provider: nope",
            "nope",
            "declared: simulator-bedrock, simulator-openai",
        ),
        ("kind: openai", "kind: gcp", "name: simulator-openai", "gcp"),
        ("name: sim-large", "name: sim-small", "name: sim-small", "given twice"),
        ("name: simulator-bedrock", "name: simulator-openai", "simulator-openai", "given twice"),
        ("context_tokens: 32768", "context_tokens: 10", "max_output_tokens: 4096", "above context"),
        ("version: 1\n", "version: 1\nversion: 1\n", "version: 1", "given twice"),
        ("version: 1\n", "version: 2\n", "version: 2", "version"),
        ("version: 1\n", "version: 1\n1: x\n", "1: x", "plain strings"),
        ("models:", "models: [\n", "name: sim-small", "expected"),
        ("http://model-simulator", "ftp://model-simulator", "ftp://", "must be http(s)://host"),
        ("http://model-simulator", "http://u:pw@model-simulator", "u:pw", "without a user"),
        ("name: sim-large", "name: Sim-Large", "Sim-Large", "lower-case letters, digits"),
        ("region: ", "region: x-", "region:", "must be an AWS region"),
        ("region: ", "credentials: none\n    region: ", "credentials: none", "'keys' or 'ambient'"),
        (
            "upstream_model: anthropic.claude-sonnet-4-5-20250929-v1:0",
            "upstream_model: claude",
            "upstream_model: claude",
            "must be a Bedrock model id such as",
        ),
        (
            "upstream_model: anthropic.claude-sonnet-4-5-20250929-v1:0",
            "upstream_model: arn:aws:bedrock:us-east-1:123456789012:provisioned-model/x",
            "provisioned-model/x",
            "kind foundation-model or inference-profile or application-inference-profile",
        ),
        (
            "upstream_model: anthropic.claude-sonnet-4-5-20250929-v1:0",
            "upstream_model: arn:aws:bedrock:us-west-2:123456789012:inference-profile/us.a.b",
            "inference-profile/us.a.b",
            "is of region us-west-2, and provider 'simulator-bedrock' calls us-east-1",
        ),
        ("providers:", "residency: {regions: []}\nproviders:", "residency", "at least 1"),
        (
            "providers:",
            "residency: {region: [a]}\nproviders:",
            "residency",
            "valid keys here: regions",
        ),
        (
            "providers:",
            'residency: {regions: ["*"]}\nproviders:',
            "residency",
            "must be an AWS region such as eu-west-1, or the beginning of several",
        ),
        ("version: 1\n", "version: 1\n# \x07\n", "\x07", "character U+0007 is not allowed"),
        ("version: 1\n", "version: !x 1\n", "!x", "could not determine a constructor"),
    ],
)
def test_errors_name_file_and_line(old: str, new: str, line: str, message: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    with pytest.raises(GovernanceError) as caught:
        load_governance(text, "spec.yaml")
    assert message in str(caught.value)
    assert "<unicode string>" not in str(caught.value)
    assert "pattern" not in str(caught.value)
    lines = {number for number, _ in caught.value.problems}
    assert lines & {n for n, found in enumerate(text.splitlines(), 1) if line in found}
    assert str(caught.value).startswith("spec.yaml:")


def test_a_missing_price_is_an_error() -> None:
    """No price, no call."""
    text = "\n".join(line for line in TEXT.splitlines() if "150000" not in line)
    with pytest.raises(GovernanceError, match="price is required"):
        load_governance(text, "spec.yaml")


BOMB = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 20)}]" for a, b in pairwise("abcdefgh"))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "a", "a: &a [*a]", "\t", "a: b\n---\nc: d", "\x00", "\ud800",
        "[" * 900 + "]" * 900, "[" * 100_000, "{a: " * 100_000, f"a: &a [1]\n{BOMB}\n",
    ],
    ids=[*"abcdefghijkl"],
)  # fmt: skip
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(GovernanceError, match=r"spec\.yaml:\d+: "):
        load_governance(text, "spec.yaml")


@given(st.text(max_size=60), st.integers(0, len(TEXT)), st.integers(0, 30))
def test_any_edit_loads_or_is_an_error_with_a_line(text: str, at: int, cut: int) -> None:
    edited = TEXT[:at] + text + TEXT[at + cut :]
    problems: list[tuple[int, str]] = []
    try:
        load_governance(edited, "spec.yaml")
    except GovernanceError as error:
        problems = error.problems
    # YAML knows more line breaks than "\n"; the text of the edit may hold some.
    assert all(1 <= line <= edited.count("\n") + len(text) + 1 for line, _ in problems)


def test_the_translator_retries_nothing_and_holds_no_secret(governance: Governance) -> None:
    config = translator_config(governance)
    assert config["router_settings"] == {"num_retries": 0, "disable_cooldowns": True}
    entries = config["model_list"]
    assert isinstance(entries, list)
    assert [entry["model_name"] for entry in entries] == [m.name for m in governance.models]
    for entry in entries:
        secrets = {k: v for k, v in entry["litellm_params"].items() if "key" in k}
        assert secrets
        assert all(str(value).startswith("os.environ/") for value in secrets.values())
        assert not entry["litellm_params"]["model"].startswith("bedrock/converse/")


def test_ambient_credentials_are_no_reference_at_all() -> None:
    text = TEXT.replace(
        "    region: us-east-1\n", "    region: us-east-1\n    credentials: ambient\n"
    )
    assert text != TEXT
    entries: Any = translator_config(load_governance(text, "spec.yaml"))["model_list"]
    [bedrock] = [e["litellm_params"] for e in entries if "bedrock/" in e["litellm_params"]["model"]]
    assert not {key for key in bedrock if "key" in key or "token" in key}
    assert bedrock["aws_region_name"] == "us-east-1"


@pytest.mark.parametrize(
    ("regions", "inside", "outside"),
    [
        (["eu-west-1"], ["eu-west-1"], ["eu-west-2", "eu-west-11", "us-east-1", ""]),
        (["eu-*"], ["eu-west-1", "eu-central-2"], ["us-east-1", "eusc-de-east-1", ""]),
        (["us-gov-*", "eu-west-1"], ["us-gov-west-1", "eu-west-1"], ["us-east-1", ""]),
    ],
)
def test_residency(regions: list[str], inside: list[str], outside: list[str]) -> None:
    text = TEXT.replace("providers:\n", f"residency: {{regions: {regions}}}\nproviders:\n", 1)
    residency = load_governance(text, "spec.yaml").residency
    assert residency is not None
    assert [region for region in inside if not residency.allows(region)] == []
    assert [region for region in outside if residency.allows(region)] == []


def test_no_residency_is_said_by_default(governance: Governance) -> None:
    assert governance.residency is None
