"""CPU of each guardrail per KB of text, as ratios to one pass of RE2 over the same text.

Run: ``.venv-services/bin/python tests/bench/guardrails.py``. Other detectors that are installed
here are measured in the same run: ``uv pip install detect-secrets``.
"""

import asyncio
import importlib.util
import logging
import random
import time
from collections.abc import Awaitable, Callable

from terrace_common.governance.guardrails import DEFAULT_PERSONAL_DATA
from terrace_gateway.guardrails.injection import InjectionGuard
from terrace_gateway.guardrails.local import Named, ReadingFilter, RuleGuardrail
from terrace_gateway.guardrails.personal_rules import personal_rules
from terrace_gateway.guardrails.scan import RuleSet
from terrace_gateway.guardrails.secret_rules import secret_rules
from terrace_gateway.linear_search import compile_pattern, encode

WORDS = [
    "the", "of", "and", "to", "in", "a", "that", "for", "was", "on", "are", "with", "they", "be",
    "model", "answer", "question", "prompt", "token", "budget", "deploy", "server", "secret",
    "January", "2026", "12", "345", "people", "because", "account", "number", "function", "return",
]  # fmt: skip
KB = 64
ROUNDS = 20


def prose(seed: int) -> str:
    """Words, numbers and lines without anything to find."""
    chance = random.Random(seed)
    words: list[str] = []
    size = 0
    while size < KB * 1024:
        words.append(chance.choice(WORDS) + chance.choice([" ", " ", " ", ", ", ".\n"]))
        size += len(words[-1])
    return "".join(words)


def named(name: str) -> Named:
    """Settings of a guardrail."""
    return Named(name, "mask", frozenset({"before"}), fails_open=False, timeout_seconds=60)


async def microseconds_per_kb(work: Callable[[], Awaitable[object]]) -> float:
    """The least of several rounds."""
    await work()
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.process_time_ns()
        await work()
        best = min(best, time.process_time_ns() - before)
    return best / 1000 / KB


async def main() -> None:
    """Print the table."""
    text = prose(1)
    chunks = [word + " " for word in text.split(" ")]
    nothing = compile_pattern(r"\bzzz[0-9]{3}\b")
    data = encode(text)
    secrets = RuleSet(secret_rules(None))
    personal = RuleSet(personal_rules(DEFAULT_PERSONAL_DATA, phone_regions=()))
    phones = RuleSet(personal_rules(DEFAULT_PERSONAL_DATA, phone_regions=("US", "DE")))

    async def re2_pass() -> object:
        return nothing.search(data)

    async def streamed(first: str = "") -> object:
        part_filter = ReadingFilter(secrets, hold=True)
        part_filter.feed(first)
        for chunk in chunks:
            part_filter.feed(chunk)
        return part_filter.flush()

    rows: dict[str, Callable[[], Awaitable[object]]] = {"one pass of RE2": re2_pass}
    for name, rules in (
        ("secrets", secrets), ("personal_data", personal),
        ("personal_data, phones of 2 regions", phones),
    ):  # fmt: skip
        guardrail = RuleGuardrail(named(name), rules)
        rows[name] = lambda guardrail=guardrail: guardrail.before([text], None)
    injection = InjectionGuard(named("prompt_injection"))
    rows["prompt_injection"] = lambda: injection.before([text], None)
    rows[f"secrets, in a stream of {len(chunks)} chunks"] = streamed
    rows["secrets, in a stream of JSON"] = lambda: streamed('{"')
    if importlib.util.find_spec("detect_secrets") is not None:
        rows["detect-secrets, all plugins"] = detect_secrets_pass(text)
    base = 0.0
    for name, work in rows.items():
        cost = await microseconds_per_kb(work)
        base = base or cost
        print(f"{name:45} {cost:9.2f} us/KB {cost / base:9.1f} x")


def detect_secrets_pass(text: str) -> Callable[[], Awaitable[object]]:
    """Its detectors on every line."""
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    logging.disable(logging.WARNING)

    async def work() -> object:
        with default_settings():
            return [list(scan_line(line)) for line in text.splitlines()]

    return work


if __name__ == "__main__":
    asyncio.run(main())
