"""Legacy text completions: a prompt of text, one answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from terrace_common.governance import Governance, Model
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.completions_answer import CompletionsSurface
from terrace_gateway.surfaces.json_body import (
    Json,
    as_flag,
    as_number,
    as_object,
    as_positive,
    as_stop,
    as_text,
    encode_json,
    unsupported,
)
from terrace_gateway.surfaces.prompt_texts import (
    Change,
    change_stop,
    put_texts,
    read_texts,
    session_of,
)
from terrace_gateway.surfaces.surface import Identity
from terrace_gateway.surfaces.upstream_request import Attempt, UpstreamRequest, input_growth

PATH = "/v1/completions"


@dataclass(frozen=True)
class CompletionsRequest:
    """A checked body."""

    asked_model: str
    stream: bool
    include_usage: bool
    requested_max_tokens: int | None
    fields: Json
    user: str | None = None
    surface: str = "completions"

    @property
    def needs(self) -> Needs:
        """What the request needs from a model."""
        return Needs(
            surface=self.surface,
            input_bound_tokens=len(encode_json(self.fields)) + self._growth,
            output_tokens=self.requested_max_tokens,
            features=frozenset({"streaming"} if self.stream else ()),
        )

    def texts(self) -> tuple[str, ...]:
        """The prompt, the text that is to follow the answer, and what ends it."""
        return read_texts(_walk, self.fields)

    def with_texts(self, texts: Sequence[str]) -> "CompletionsRequest":
        """The same request saying ``texts``."""
        return replace(self, fields=put_texts(_walk, self.fields, texts))

    def session(self) -> str | None:
        """What the conversation is known by: a completion has none but its user."""
        return session_of(self.user, ())

    def upstream(
        self,
        *,
        governance: Governance,
        model: Model,
        attempt_id: str,
        traceparent: str,
        max_output_tokens: int,
        relay: bool = False,
    ) -> UpstreamRequest:
        """The request for the translator or a relay."""
        del governance
        attempt = Attempt(attempt_id, traceparent)
        body: Json = {
            "model": model.upstream_model if relay else model.name,
            **self.fields,
            "max_tokens": max_output_tokens,
        }
        if not relay:
            body["extra_headers"] = attempt.headers()
        if self.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        encoded = encode_json(body)
        bound = len(encoded) + self._growth
        return UpstreamRequest(
            PATH, encoded, bound, max_output_tokens, attempt.headers(), relayed=relay
        )

    def answers(self, identity: Identity) -> CompletionsSurface:
        """How answers to this request are read."""
        return CompletionsSurface(identity, self.stream, self.include_usage)

    @cached_property
    def _growth(self) -> int:
        return input_growth(self.fields)


def _walk(fields: Json, change: Change) -> Json:
    result = dict(fields)
    for name in ("prompt", "suffix"):
        if name in fields:
            result[name] = change(cast("str", fields[name]))
    if "stop" in fields:
        result["stop"] = change_stop(fields["stop"], change)
    return result


def read_completions_body(body: Json) -> CompletionsRequest:
    """Check a client's body. Raises ``ApiError`` naming the field."""
    for field in ("n", "best_of"):
        if body.get(field, 1) not in (1, None) or isinstance(body.get(field), bool):
            raise unsupported(f"{field} must be 1: more answers cannot be bounded", field)
    if body.get("echo"):
        raise unsupported("echo is not supported: the prompt comes back unfiltered", "echo")
    fields: Json = {"prompt": _prompt(body.get("prompt"))}
    for field, check in _TAKEN.items():
        if body.get(field) is not None:
            fields[field] = check(body[field], field)
    requested = body.get("max_tokens")
    options = body.get("stream_options")
    shown = options is not None and (
        as_object(options, "stream_options").get("include_usage") is True
    )
    return CompletionsRequest(
        asked_model=as_text(body.get("model"), "model"),
        stream=as_flag(body.get("stream") or False, "stream"),
        include_usage=shown,
        requested_max_tokens=None if requested is None else as_positive(requested, "max_tokens"),
        fields=fields,
        user=user if isinstance(user := body.get("user"), str) else None,
    )


def _prompt(value: object) -> str:
    if isinstance(value, list):
        prompts = cast("list[object]", value)
        if len(prompts) != 1 or not isinstance(prompts[0], str):
            raise unsupported(
                "prompt must be one text: several are several answers, and tokens cannot be read",
                "prompt",
            )
        return prompts[0]
    return as_text(value, "prompt")


_TAKEN: dict[str, Callable[[object, str], object]] = {
    "suffix": as_text,
    "temperature": as_number,
    "top_p": as_number,
    "presence_penalty": as_number,
    "frequency_penalty": as_number,
    "seed": as_number,
    "stop": as_stop,
}
REFUSED = {
    "n": "above 1: more answers cannot be bounded",
    "best_of": "above 1: more answers cannot be bounded",
    "echo": "the prompt would come back unfiltered",
}
FIELD_NAMES = frozenset(_TAKEN) | {
    "model",
    "prompt",
    "max_tokens",
    "stream",
    "stream_options",
    "user",
}
"""Every field of a client's body that has an effect."""
