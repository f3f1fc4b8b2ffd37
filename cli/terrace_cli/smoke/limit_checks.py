"""The checks of `terrace smoke` that the gateway refuses: models, fields, caps, strangers."""

import secrets

from terrace_cli.output import counted
from terrace_cli.smoke.answers import Refusal
from terrace_cli.smoke.bench import CHAT_MODEL, DENIED_MODEL, Bench, Check, CheckFailedError
from terrace_cli.smoke.openai_client import openai_client, refusal_of, sent
from terrace_cli.smoke.refusals import chat_with, refused

# Below the worst case of about four calls, above their real cost: some pass, then the cap holds.
_SMALL_BUDGET_MICRO_USD = 150
_MOST_CALLS = 40


def _denied_model(bench: Bench) -> str:
    return refused(chat_with(bench, bench.key, model=DENIED_MODEL), 403, "model_not_allowed")


def _unbounded_field(bench: Bench) -> str:
    return refused(chat_with(bench, bench.key, n=2), 400, "unsupported_parameter")


def _exhausted_budget(bench: Bench) -> str:
    made = bench.new_key(
        "smoke small budget", models=[CHAT_MODEL], budget_micro_usd=_SMALL_BUDGET_MICRO_USD
    )
    passed = 0
    while passed < _MOST_CALLS:
        seen = refusal_of(chat_with(bench, made["key"]))
        if isinstance(seen, Refusal):
            break
        passed += 1
    else:
        raise CheckFailedError(
            f"{_MOST_CALLS} calls passed a budget of {_SMALL_BUDGET_MICRO_USD} micro-USD"
        )
    if (seen.status, seen.code) != (429, "budget_exhausted") or seen.retry_after is not None:
        raise CheckFailedError(
            f"after {counted(passed, 'call')}: {seen}, Retry-After {seen.retry_after}"
        )
    state = bench.key_state(made["key_id"])
    spent = state["settled_micro_usd"] + state["outstanding_micro_usd"]
    if passed == 0 or spent > _SMALL_BUDGET_MICRO_USD:
        raise CheckFailedError(f"{counted(passed, 'call')} passed, {spent} micro-USD spent")
    return (
        f"{seen} after {counted(passed, 'call')} and {spent} of {_SMALL_BUDGET_MICRO_USD} micro-USD"
    )


def _rate_limit(bench: Bench) -> str:
    made = bench.new_key("smoke one per minute", models=[CHAT_MODEL], requests_per_minute=1)
    call = chat_with(bench, made["key"])
    call()
    seen = refusal_of(call)
    if not isinstance(seen, Refusal) or (seen.status, seen.code) != (429, "rate_limited"):
        raise CheckFailedError(f"{seen}")
    if seen.retry_after is None:
        raise CheckFailedError(f"{seen} without Retry-After")
    return f"{seen}, Retry-After {seen.retry_after} s"


def _wrong_key(bench: Bench) -> str:
    return refused(chat_with(bench, f"tk-{secrets.token_urlsafe(32)}"), 401, "invalid_api_key")


def _unlisted_route(bench: Bench) -> str:
    def call() -> object:
        with openai_client(bench.gateway, bench.key) as client:
            return sent(client.moderations.create, model=CHAT_MODEL, input="x")

    return refused(call, 404, "route_not_found")


LIMIT_CHECKS = (
    Check(name="denied model", expected="403 model_not_allowed", run=_denied_model),
    Check(name="unbounded field", expected="400 unsupported_parameter", run=_unbounded_field),
    Check(
        name="exhausted budget", expected="429 budget_exhausted, never above", run=_exhausted_budget
    ),
    Check(name="rate limit", expected="429 rate_limited, Retry-After", run=_rate_limit),
    Check(name="wrong key", expected="401 invalid_api_key", run=_wrong_key),
    Check(name="unlisted route", expected="404 route_not_found", run=_unlisted_route),
)
