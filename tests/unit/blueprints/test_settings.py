"""Stack configuration: what is taken, and what is refused with which words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_blueprints.settings import KEYS, Settings, SettingsError, load_settings

FILE = "Pulumi.local.yaml"


def load(**terrace: Any) -> Settings:
    return load_settings({f"terrace:{key}": value for key, value in terrace.items()}, FILE)


def refused(**terrace: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        load(**terrace)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{FILE}: ")
    return message


def test_nothing_configured_is_stage_one_here() -> None:
    settings = load()
    assert (settings.stage, settings.substrate, settings.part) == (1, "local", "all")
    assert settings.substrate_file == "/var/lib/terrace/substrate.json"
    assert settings.governance_file is None
    assert settings.layers is None


def test_values_arrive_as_text() -> None:
    settings = load(stage="1", layers='["gateway"]', governanceFile="mine.yaml")
    assert settings.stage == 1
    assert settings.layers == ("gateway",)
    assert settings.governance_file == "mine.yaml"


def test_other_peoples_keys_are_left_alone() -> None:
    others = {"kubernetes:context": "x", "aws:profile": "y", "gcp:project": "z"}
    assert load_settings(others, FILE) == Settings()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("stag", "stage"),
        ("Stage", "stage"),
        ("substrat", "substrate"),
        ("governance_file", "governanceFile"),
        ("governancefile", "governanceFile"),
        ("substrate_file", "substrateFile"),
        ("otlp-endpoint", "otlpEndpoint"),
        ("layer", "layers"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_one_that_was_meant(key: str, meant: str) -> None:
    message = refused(**{key: "1"})
    assert f"unknown key 'terrace:{key}' (did you mean 'terrace:{meant}'?)" in message
    assert all(f"terrace:{valid}" in message for valid in KEYS)


def test_a_key_like_no_other_lists_the_valid_ones_without_a_guess() -> None:
    message = refused(zzz="1")
    assert "did you mean" not in message
    assert "valid keys: terrace:stage" in message


def test_all_unknown_keys_are_named_at_once() -> None:
    message = refused(stag="1", zzz="2")
    assert "'terrace:stag'" in message
    assert "'terrace:zzz'" in message


def test_a_misspelt_namespace_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'terace:stage'; did you mean terrace:stage\?"):
        load_settings({"terace:stage": "1"}, FILE)


@pytest.mark.parametrize("stage", ["4", "0", "-1", 4, "one", "", "1.5", "true"])
def test_a_stage_that_is_none_names_the_three(stage: Any) -> None:
    assert "is no stage; valid: 1, 2, 3" in refused(stage=stage)


@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_later_stage_says_what_this_release_has(stage: str) -> None:
    message = refused(stage=stage)
    said = f"terrace:stage: stage {stage} is not built yet in this release, which has stage 1"
    assert said in message


def test_a_misspelt_substrate_is_refused_with_the_one_that_was_meant() -> None:
    message = refused(substrate="locl")
    assert "'locl' is no substrate (did you mean 'local'?); valid: local, aws, existing" in message


@pytest.mark.parametrize("part", ["substrate", "platform"])
@pytest.mark.parametrize("substrate", ["local", "existing"])
def test_only_aws_has_parts(substrate: str, part: str) -> None:
    message = refused(substrate=substrate, part=part)
    assert message == f"{FILE}: terrace:part: substrate {substrate} is one stack; valid here: all"


def test_aws_is_never_one_stack() -> None:
    for part in ({}, {"part": "all"}):
        message = refused(substrate="aws", **part)
        assert "terrace:part: substrate aws is two stacks" in message
        assert message.endswith("valid here: substrate, platform")


def test_a_part_that_is_none_lists_the_three() -> None:
    message = refused(part="platfrom")
    assert "'platfrom' is no part (did you mean 'platform'?); valid: all, substrate" in message


@pytest.mark.parametrize("layers", ["gateway", "[]", "{}", '"gateway"', "[1"])
def test_layers_are_a_list(layers: str) -> None:
    assert "must be a YAML list of layers; valid: gateway, sandbox" in refused(layers=layers)


def test_layers_of_later_stages_and_unknown_ones() -> None:
    assert "layer sandbox is not built yet" in refused(layers='["gateway", "sandbox"]')
    assert "'gatewy' is no layer (did you mean 'gateway'?)" in refused(layers='["gatewy"]')
    assert "names a layer twice" in refused(layers='["gateway", "gateway"]')


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://x", "http://"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    message = f"terrace:otlpEndpoint: must be http(s)://host[:port]; got {endpoint!r}"
    assert message in refused(otlpEndpoint=endpoint)


def test_every_problem_is_told() -> None:
    message = refused(stage="4", substrate="moon")
    assert "terrace:stage" in message
    assert "terrace:substrate" in message


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4))
def test_no_configuration_ends_in_anything_but_settings_or_a_message(
    terrace: dict[str, str],
) -> None:
    try:
        outcome: Settings | str = load(**terrace)
    except SettingsError as error:
        outcome = str(error)
    assert isinstance(outcome, Settings) or outcome.startswith(FILE)
