"""A provider's 400 names a field to the client if it is one of the client's surface."""

import json

import pytest

from terrace_gateway.edge.refusals import upstream_error
from terrace_gateway.surfaces.request import FIELDS_OF


def told(param: object, surface: str) -> str | None:
    body = json.dumps({"error": {"message": "internal text", "param": param}}).encode()
    error = upstream_error(400, None, body, surface=surface)
    assert "internal" not in error.message
    assert (error.param or "") in error.message
    return error.param


@pytest.mark.parametrize("surface", FIELDS_OF)
def test_every_field_of_a_surface_is_named(surface: str) -> None:
    for field in FIELDS_OF[surface]:
        assert told(field, surface) == field
        assert told(f"{field}[3].deep.internal", surface) == f"{field}[3]"
        assert told(f"{field}.2", surface) == f"{field}[2]"


@pytest.mark.parametrize(
    ("param", "surface", "shown"),
    [
        ("input[1].content", "responses", "input[1]"),
        ("input", "chat", None),
        ("messages", "responses", None),
        ("max_output_tokens", "messages", None),
        ("prompt", "completions", "prompt"),
        ("inferenceConfig.topP", "converse", "inferenceConfig"),
        ("extra_headers", "chat", None),
        ("api_base", "messages", None),
        ("Input", "responses", None),
        (["input"], "responses", None),
        (None, "embeddings", None),
    ],
)
def test_others_are_not(param: object, surface: str, shown: str | None) -> None:
    assert told(param, surface) == shown
