"""CPU microseconds of one match over a catalogue of 200 models, and of one decision by name.

    .venv-services/bin/python tests/bench/matching.py [--models 200] [--repeat 20000]

Prints p50, p99 and the worst per case, in turns so that what else the machine does falls on all.
Asserts nothing.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from terrace_common.governance import Governance
from terrace_gateway.calls.ports import EffectivePolicy, MatchRequest, Needs
from terrace_gateway.clock import Clock
from terrace_gateway.matching import Matcher
from terrace_gateway.prices import Prices

FEATURES = ["tools", "streaming", "json_schema"]


def catalogue(count: int) -> Governance:
    """Models of three providers, with tiers, fallbacks and a canary here and there."""
    models = []
    for number in range(count):
        rate = 100_000 + 37_000 * ((number * 61) % count)
        price = {"input_micro_usd_per_mtok": rate, "output_micro_usd_per_mtok": 4 * rate}
        if number % 3 == 0:
            tier = {name: 2 * value for name, value in price.items()}
            price["tiers"] = [{"above_input_tokens": 200_000, **tier}]  # type: ignore[assignment]
        model = {
            "name": f"m{number}",
            "provider": f"p{number % 3}",
            "upstream_model": f"m{number}",
            "context_tokens": (8_000, 32_000, 200_000, 1_000_000)[number % 4],
            "max_output_tokens": 4096,
            "features": FEATURES if number % 2 else [*FEATURES, "reasoning"],
            "price": price,
        }
        if number + 2 < count and number % 5 == 0:
            model["fallbacks"] = [f"m{number + 1}", f"m{number + 2}"]
        models.append(model)
    providers = [{"name": f"p{n}", "kind": "openai", "api_base": f"http://p{n}"} for n in range(3)]
    return Governance.model_validate(
        {"version": 1, "price_version": "v", "providers": providers, "models": models}
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=20_000)
    options = parser.parse_args()
    matcher = Matcher(catalogue(options.models), prices=Prices("v"), clock=Clock())
    policy = EffectivePolicy(providers=frozenset({"p0", "p1", "p2"}))
    tools = Needs("chat", 12_000, 800, frozenset({"tools", "streaming"}))

    def ask(asked: str, **more: str) -> Callable[[], object]:
        request = MatchRequest(asked, tools, **more)  # type: ignore[arg-type]
        return lambda: matcher.match(request, policy, request_id="req_1")

    troubled = Matcher(catalogue(options.models), prices=Prices("v"), clock=Clock())
    everyone = MatchRequest("auto", tools)
    for candidate in troubled.match(everyone, policy, request_id="r").candidates:
        troubled.throttled(candidate, 600)
    cases: dict[str, Callable[[], object]] = {
        "by name, with fallbacks": ask("m5"),
        "auto": ask("auto"),
        "auto with hints": ask("auto?context=30k&max_input_usd_per_mtok=5"),
        "auto in a session": ask("auto", session="key_1:abc"),
        "auto, eight throttled": lambda: troubled.match(everyone, policy, request_id="r"),
    }
    taken: dict[str, list[int]] = {name: [] for name in cases}
    for turn in range(options.repeat):
        for name, case in cases.items():
            began = time.thread_time_ns()
            case()
            if turn >= 100:
                taken[name].append(time.thread_time_ns() - began)
    print(f"{options.models} models, {options.repeat} times each, CPU microseconds")
    for name, nanoseconds in taken.items():
        cuts = statistics.quantiles(nanoseconds, n=100)
        print(
            f"{name:28} p50 {cuts[49] / 1000:7.1f}   p99 {cuts[98] / 1000:7.1f}"
            f"   worst {max(nanoseconds) / 1000:9.1f}"
        )


if __name__ == "__main__":
    main()
