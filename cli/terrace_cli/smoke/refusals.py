"""What the checks of refusals share: an ordinary call, and the refusal that must meet it."""

import time
from collections.abc import Callable

from terrace_cli.smoke.answers import Answer, Refusal
from terrace_cli.smoke.bench import CHAT_MODEL, MAX_TOKENS, PROMPT, Bench, CheckFailedError
from terrace_cli.smoke.openai_client import chat, refusal_of

# A replica may act on what it knew for one policy lease; then it knows better, or answers 503.
POLICY_LEASE_SECONDS = 1.0
# Each is a new connection, so that more than one replica is asked.
CALLS_AFTER_A_CHANGE = 4
_PATIENCE_SECONDS = 20.0
_PAUSE_SECONDS = 0.2


def chat_with(
    bench: Bench, key: str, *, model: str = CHAT_MODEL, **options: object
) -> Callable[[], Answer]:
    """An ordinary call, to be made."""
    return lambda: chat(bench.gateway, key, model, PROMPT, max_tokens=MAX_TOKENS, **options)


def refused(call: Callable[[], object], status: int, code: str) -> str:
    """Make the call; it must be refused with this status and code."""
    return _judged(refusal_of(call), status, code)


def _judged(seen: object, status: int, code: str) -> str:
    if not isinstance(seen, Refusal):
        raise CheckFailedError("the call was let through")
    if (seen.status, seen.code) != (status, code):
        raise CheckFailedError(str(seen))
    return str(seen)


def refused_everywhere(call: Callable[[], object], status: int, code: str) -> str:
    """After an administrative change: once the policy lease has ended, no replica lets the call
    through. A replica that cannot know yet says 503, and is asked again."""
    time.sleep(POLICY_LEASE_SECONDS)
    until = time.monotonic() + _PATIENCE_SECONDS
    seen = ""
    for _ in range(CALLS_AFTER_A_CHANGE):
        while _is_unsure(answer := refusal_of(call)) and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)
        seen = _judged(answer, status, code)
    return seen


def let_through(call: Callable[[], object]) -> None:
    """After a change that allows the call: every replica knows before long."""
    until = time.monotonic() + _PATIENCE_SECONDS
    for _ in range(CALLS_AFTER_A_CHANGE):
        while isinstance(answer := refusal_of(call), Refusal):
            if time.monotonic() > until:
                raise CheckFailedError(f"still {answer}")
            time.sleep(_PAUSE_SECONDS)


def _is_unsure(answer: object) -> bool:
    return isinstance(answer, Refusal) and answer.status == 503
