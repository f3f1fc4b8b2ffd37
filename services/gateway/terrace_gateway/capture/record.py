"""One captured call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from terrace_gateway.calls.ports import Caller

MAX_CHARACTERS = 512 * 1024
"""Of a prompt, and of an answer; the rest is left out, and that is said."""


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """What a policy asks to keep, before it is redacted."""

    request_id: str
    caller: Caller
    surface: str
    model: str
    texts: tuple[str, ...]
    answer_texts: tuple[str, ...]
    """Parts of the answer in order; they are one text."""
    retention_days: int
    truncated: bool = False

    @property
    def size(self) -> int:
        """Characters."""
        return sum(map(len, self.texts)) + sum(map(len, self.answer_texts))


def bounded(call: CapturedCall) -> CapturedCall:
    """The call with at most ``MAX_CHARACTERS`` of prompt and answer each."""
    prompt, cut_prompt = _first(call.texts)
    answer, cut_answer = _first(("".join(call.answer_texts),))
    return CapturedCall(
        call.request_id, call.caller, call.surface, call.model, prompt, answer,
        call.retention_days, call.truncated or cut_prompt or cut_answer,
    )  # fmt: skip


def plain_bytes(prompt: Sequence[str], answer: Sequence[str], *, truncated: bool) -> bytes:
    """What is encrypted: JSON."""
    return json.dumps(
        {"prompt": list(prompt), "answer": list(answer), "truncated": truncated}
    ).encode()


def binding(request_id: str, expires_on: date, key_id: str) -> bytes:
    """What a sealed capture belongs to: moved to another row, it does not open."""
    return json.dumps([request_id, expires_on.isoformat(), key_id]).encode()


def _first(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    left = MAX_CHARACTERS
    kept: list[str] = []
    for text in texts:
        kept.append(text[:left])
        left -= len(kept[-1])
        if len(kept[-1]) < len(text):
            return tuple(kept), True
    return tuple(kept), False
