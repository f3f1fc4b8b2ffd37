"""Names of Bedrock models are taken apart as AWS puts them together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.bedrock import GEOGRAPHIES, KINDS, BedrockModel, parse_model

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
ACCOUNT = "123456789012"


@pytest.mark.parametrize(
    ("identifier", "kind", "geography", "base"),
    [
        (CLAUDE, "foundation-model", None, CLAUDE),
        ("amazon.nova-lite-v1:0", "foundation-model", None, "amazon.nova-lite-v1:0"),
        ("deepseek.v3-v1:0", "foundation-model", None, "deepseek.v3-v1:0"),
        # A dot in the version of a model is no geography.
        ("moonshotai.kimi-k2.5", "foundation-model", None, "moonshotai.kimi-k2.5"),
        (f"us.{CLAUDE}", "inference-profile", "us", CLAUDE),
        (f"us-gov.{CLAUDE}", "inference-profile", "us-gov", CLAUDE),
        (f"global.{CLAUDE}", "inference-profile", "global", CLAUDE),
        ("apac.amazon.nova-pro-v1:0", "inference-profile", "apac", "amazon.nova-pro-v1:0"),
        ("us.model", "foundation-model", None, "us.model"),
    ],
)
def test_ids(identifier: str, kind: str, geography: str | None, base: str) -> None:
    found = parse_model(identifier)
    assert (found.kind, found.geography, found.base_model) == (kind, geography, base)
    assert (found.name, found.partition, found.region, found.account) == (identifier, *[None] * 3)


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov", "aws-iso-b"])
def test_arns(partition: str) -> None:
    head = f"arn:{partition}:bedrock:eu-west-1"
    foundation = parse_model(f"{head}::foundation-model/{CLAUDE}")
    assert foundation == BedrockModel(
        "foundation-model", CLAUDE, None, CLAUDE, partition, "eu-west-1", None
    )
    profile = parse_model(f"{head}:{ACCOUNT}:inference-profile/eu.{CLAUDE}")
    assert profile == BedrockModel(
        "inference-profile", f"eu.{CLAUDE}", "eu", CLAUDE, partition, "eu-west-1", ACCOUNT
    )
    application = parse_model(f"{head}:{ACCOUNT}:application-inference-profile/abc123")
    assert application == BedrockModel(
        "application-inference-profile", "abc123", None, None, partition, "eu-west-1", ACCOUNT
    )


def test_the_foundation_model_of_a_global_profile_has_no_region() -> None:
    found = parse_model(f"arn:aws:bedrock:::foundation-model/{CLAUDE}")
    assert (found.region, found.base_model) == ("", CLAUDE)


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("", "must be a Bedrock model id"),
        ("claude", "inference profile id such as us."),
        ("anthropic.", "must be a Bedrock model id"),
        ("anthropic.claude v1", "must be a Bedrock model id"),
        ("arn:", "arn:<partition>:bedrock:<region>"),
        ("arn:aws:s3:::bucket", "arn:<partition>:bedrock:<region>"),
        (f"arn:aws:bedrock:us-east-1:{ACCOUNT}:provisioned-model/x", " or ".join(KINDS)),
        (f"arn:aws:bedrock:us-east-1:{ACCOUNT}:inference-profile/", "arn:<partition>"),
        (f"arn:aws:bedrock:us-east-1:{ACCOUNT}:foundation-model/{CLAUDE}", "an account is part"),
        ("arn:aws:bedrock:us-east-1::application-inference-profile/x", "an account is part"),
        ("arn:aws:bedrock:us-east-1:12345:inference-profile/x", "arn:<partition>"),
    ],
)
def test_wrong_names_say_what_would_be_right(identifier: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is part") as caught:
        parse_model(identifier)
    assert reason in str(caught.value)


@given(
    st.sampled_from(sorted(GEOGRAPHIES)),
    st.from_regex(r"[a-z]{2,9}\.[a-z0-9-]{1,20}(:0)?", fullmatch=True),
)
def test_a_profile_is_its_geography_and_its_model(geography: str, base: str) -> None:
    found = parse_model(f"{geography}.{base}")
    assert (found.kind, found.geography, found.base_model) == ("inference-profile", geography, base)


@given(st.text(max_size=80))
def test_any_text_is_a_model_or_an_error(text: str) -> None:
    try:
        found = parse_model(text)
    except ValueError:
        return
    assert found.kind in KINDS
