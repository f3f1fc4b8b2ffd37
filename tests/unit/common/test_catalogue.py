"""Features, regions, fallbacks and canaries of the catalogue: defaults, and what is refused."""

from typing import Any

import pytest
import yaml

from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.governance.regions import region_allowed
from terrace_common.translator_config import translator_config

BEDROCK = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PROFILE = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc"


def model(name: str, **fields: Any) -> dict[str, Any]:
    price = {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1}
    return {
        "name": name, "provider": "o", "upstream_model": name, "context_tokens": 100,
        "max_output_tokens": 10, "price": price, **fields,
    }  # fmt: skip


def spec(*models: dict[str, Any]) -> Governance:
    providers = [
        {"name": "o", "kind": "openai", "api_base": "http://o"},
        {"name": "b", "kind": "bedrock", "region": "eu-west-1"},
    ]
    document = {"version": 1, "price_version": "v", "providers": providers, "models": list(models)}
    return load_governance(yaml.safe_dump(document), "spec.yaml")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([model("a", fallbacks=["x"])], "model 'x' is not declared; declared: a"),
        ([model("a", fallbacks=["a"])], "in a circle: a -> a"),
        ([model("a", fallbacks=["b"]), model("b", fallbacks=["a"])], "in a circle: a -> b -> a"),
        (
            [model("a", fallbacks=["b"]), model("b", canary={"model": "a", "percent": 1})],
            "in a circle",
        ),
        ([model("a", canary={"model": "x", "percent": 1})], "'x' is not declared"),
        ([model("a", canary={"model": "b", "percent": 101}), model("b")], "less than or equal"),
        ([model("a", fallbacks=["b", "b"]), model("b")], "given twice"),
        ([model("a", fallbacks=["b"]), model("b", kind="embeddings")], "is of kind embeddings"),
        ([model("a", features=["embeddings"])], "kind embeddings"),
        ([model("a", features=["sight"])], "tools"),
        ([model("a", regions=["mars"])], "must be an AWS region"),
        ([model("a", surfaces=["audio"])], "chat"),
        ([model("auto")], "'auto' is how clients leave the choice"),
        ([model("a", aliases=["auto"])], "'auto' is how clients leave the choice"),
        ([model("a", provider="b", upstream_model=PROFILE)], "base_model is required"),
    ],
)
def test_what_does_not_fit_is_refused(models: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(GovernanceError) as caught:
        spec(*models)
    assert message in str(caught.value)
    assert str(caught.value).startswith("spec.yaml:")


def test_a_diamond_is_no_circle() -> None:
    found = spec(
        model("a", fallbacks=["b", "c"]), model("b", fallbacks=["d"]),
        model("c", fallbacks=["d"], canary={"model": "d", "percent": 5}), model("d"),
    )  # fmt: skip
    assert found.models[0].fallbacks == ("b", "c")


def test_what_is_left_out_keeps_todays_models_as_they_are() -> None:
    plain, vectors, bedrock = spec(
        model("a"), model("v", kind="embeddings"), model("b", provider="b", upstream_model=BEDROCK)
    ).models
    providers = spec(model("a")).providers
    assert plain.able == {"tools", "json_schema", "streaming", "reasoning"}
    assert vectors.able == {"embeddings"}
    assert vectors.served_on(providers[0]) == {"embeddings"}
    assert "converse" not in plain.served_on(providers[0])
    assert "converse" in bedrock.served_on(providers[1])
    assert plain.processed_in(providers[0]) == ()


@pytest.mark.parametrize(
    ("upstream", "regions"),
    [
        (BEDROCK, ("eu-west-1",)),
        (f"eu.{BEDROCK}", ("eu-*",)),
        (f"apac.{BEDROCK}", ("ap-*",)),
        (f"global.{BEDROCK}", ()),
        (f"sa.{BEDROCK}", ()),
        (f"arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.{BEDROCK}", ("eu-*",)),
    ],
)
def test_where_a_bedrock_model_may_process(upstream: str, regions: tuple[str, ...]) -> None:
    found = spec(model("m", provider="b", upstream_model=upstream))
    assert found.models[0].processed_in(found.providers[1]) == regions


@pytest.mark.parametrize(
    ("region", "allowed", "expected"),
    [
        ("eu-west-1", ["eu-west-1"], True), ("eu-west-1", ["eu-*"], True),
        ("eu-*", ["eu-*"], True), ("eu-*", ["eu-west-1"], False), ("eu-*", ["eu-west-*"], False),
        ("eu-west-*", ["eu-*"], True), ("eusc-de-east-1", ["eu-*"], False),
        ("eu-west-1", [], False),
        ("us-*", ["us-gov-*"], False), ("us-gov-*", ["us-*"], True),
    ],
)  # fmt: skip
def test_patterns_cover_patterns(region: str, allowed: list[str], expected: bool) -> None:
    assert region_allowed(region, allowed) is expected


def test_the_translator_is_told_what_a_name_does_not_say() -> None:
    found = spec(
        model("a"), model("v", kind="embeddings"),
        model("p", provider="b", upstream_model=PROFILE, base_model=f"eu.{BEDROCK}"),
    )  # fmt: skip
    entries: Any = translator_config(found)["model_list"]
    assert [entry.get("model_info") for entry in entries] == [
        None, {"mode": "embedding"}, {"base_model": f"eu.{BEDROCK}"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "address", ["http://o:99999/v1", "http://o:port", "http:///v1", "http://[o/v1", "http://oö/v1"]
)
def test_an_address_that_nobody_can_call_is_refused(address: str) -> None:
    text = yaml.safe_dump(
        {
            "version": 1, "price_version": "v", "models": [model("a")],
            "providers": [{"name": "o", "kind": "openai", "api_base": address}],
        }
    )  # fmt: skip
    with pytest.raises(GovernanceError, match="with a host and a port from 1 to 65535") as caught:
        load_governance(text, "spec.yaml")
    [line] = [line for line, what in caught.value.problems if "api_base" in what]
    assert "api_base" in text.splitlines()[line - 1]
