"""The body's schema against the public client's own list of parameters."""

from typing import get_type_hints

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from pydantic import ValidationError

from terrace_model_simulator.incoming import property_path
from terrace_model_simulator.openai_schema import ChatCompletionRequest


def test_every_parameter_of_the_public_client_is_known_and_no_other() -> None:
    public = set(get_type_hints(CompletionCreateParamsBase)) | {"stream"}
    assert set(ChatCompletionRequest.model_fields) == public


@pytest.mark.parametrize(
    ("body", "path", "kind"),
    [
        ("{", "", "json_invalid"),
        ("[]", "", "model_type"),
        ('{"model": "m"}', "messages", "missing"),
        ('{"model": "m", "messages": []}', "messages", "too_short"),
        ('{"model": 1, "messages": [{"role": "user"}]}', "model", "string_type"),
        ('{"model": "m", "messages": [{"role": "king"}]}', "messages[0].role", "literal_error"),
        (
            '{"model":"m","messages":[{"role":"user"}],"max_tokens":0}',
            "max_tokens",
            "greater_than_equal",
        ),
        ('{"model":"m","messages":[{"role":"user"}],"max_tokens":"9"}', "max_tokens", "int_type"),
        ('{"model":"m","messages":[{"role":"user"}],"max_tokens":true}', "max_tokens", "int_type"),
        (
            '{"model":"m","messages":[{"role":"user"}],"temprature":1}',
            "temprature",
            "extra_forbidden",
        ),
        ('{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', "", "json_invalid"),
        (
            '{"model":"m","messages":[{"role":"user","content":5}]}',
            "messages[0].content",
            "string_type",
        ),
    ],
)
def test_errors_name_the_property(body: str, path: str, kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate_json(body)
    assert property_path(caught.value)[:2] == (path, kind)
