"""What a decision on caps costs: in memory when slices are warm, one round trip when they are not.

``python tests/bench/slices.py [--decisions N]`` needs PostgreSQL's programs. It prints microseconds
of reserve + settle over 5 scopes for few and for many keys, the ratio of both, and grants per
second against real Postgres beside bare round trips of the same run. It asserts nothing.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "service" / "gateway" / "rig"))

from gateway_rig.postgres import Postgres
from gateway_rig.slices import Replica, SliceRig, amounts_of, slice_rig

from terrace_gateway.calls.ports import Cap, Hold

AMOUNTS = amounts_of(money=1000)
KEYS, TEAMS = 10_000, 1_000
PLENTY = 10**15


def caps_of(rig: SliceRig, keys: int, teams: int) -> list[list[Cap]]:
    """Five caps for each of ``keys``: org, team, app, key, and the key's number of requests."""
    rig.sql(
        "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
        f" SELECT 'key', 'k' || n, d, 0, {PLENTY} FROM generate_series(1, {keys}) n,"
        " unnest(ARRAY['micro_usd', 'requests']) d"
        f" UNION ALL SELECT 'team', 't' || n, 'micro_usd', 0, {PLENTY}"
        f" FROM generate_series(1, {teams}) n"
        f" UNION ALL SELECT 'app', 'a' || n, 'micro_usd', 0, {PLENTY}"
        f" FROM generate_series(1, {teams}) n"
        f" UNION ALL SELECT 'org', 'o', 'micro_usd', 0, {PLENTY}"
    )
    ids = {
        (scope, scope_id, dimension): cap_id
        for cap_id, scope, scope_id, dimension in rig.sql(
            "SELECT cap_id, scope, scope_id, dimension FROM cap"
        )
    }
    like = rig.read_cap(ids["org", "o", "micro_usd"])

    def cap(*name: str) -> Cap:
        return Cap(ids[name], name[0], name[1], name[2], like.window, PLENTY)  # pyright: ignore

    return [
        [cap("org", "o", "micro_usd"), cap("team", f"t{1 + n % teams}", "micro_usd"),
         cap("app", f"a{1 + n % teams}", "micro_usd"), cap("key", f"k{1 + n}", "micro_usd"),
         cap("key", f"k{1 + n}", "requests")]
        for n in range(keys)
    ]  # fmt: skip


async def warm(replica: Replica, caps: list[list[Cap]]) -> None:
    """Give every key slices that last for the run."""
    for start in range(0, len(caps), 500):
        some = caps[start : start + 500]
        holds = await asyncio.gather(
            *(replica.reserve(own, money=10**9, requests=10**6) for own in some)
        )
        for hold in holds:
            if isinstance(hold, Hold):
                replica.book.settle(hold, amounts_of(requests=0))


def decide(replica: Replica, caps: list[list[Cap]], decisions: int) -> list[float]:
    """Microseconds of each warm reserve + settle."""
    book, took = replica.book, list[float]()
    keys = itertools.cycle(caps)
    for n in range(decisions):
        own = next(keys)
        began = time.perf_counter()
        hold = book.reserve_now(f"att_{n}", own, AMOUNTS)
        if hold is None:
            sys.exit("a slice was not warm")
        book.settle(hold, AMOUNTS)
        took.append((time.perf_counter() - began) * 1e6)
    return sorted(took)


async def per_second(calls: int, one: Callable[[int], object]) -> float:
    """Calls per second, one after the other."""
    began = time.perf_counter()
    for n in range(calls):
        await one(n)  # pyright: ignore
    return calls / (time.perf_counter() - began)


async def main(decisions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="terrace-bench-") as folder:
        server = Postgres(Path(folder))
        server.create()
        try:
            medians: dict[int, float] = {}
            for keys, teams in ((10, 2), (KEYS, TEAMS)):
                async with slice_rig(server) as rig:
                    replica, caps = await rig.replica(), caps_of(rig, keys, teams)
                    await warm(replica, caps)
                    took = decide(replica, caps, decisions)
                    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
                    medians[keys] = p50
                    print(f"warm, {keys:6} keys: p50 {p50:6.1f} us  p99 {p99:6.1f} us  (limit 200)")
            print(f"{KEYS} keys : 10 keys = {medians[KEYS] / medians[10]:.2f}")
            async with slice_rig(server) as rig:
                replica, caps = await rig.replica(), caps_of(rig, KEYS, TEAMS)
                bare = await per_second(500, lambda _: replica.execute("SELECT 1"))
                cold = await per_second(500, lambda n: replica.reserve(caps[n], money=1000))
                began = time.perf_counter()
                many = caps[1000:5000]
                await asyncio.gather(*(replica.reserve(own, money=1000) for own in many))
                batched = len(many) / (time.perf_counter() - began)
                print(f"cold grants over 5 caps, one at a time: {cold:7.0f}/s"
                      f"  (bare round trips {bare:7.0f}/s, ratio {bare / cold:.1f})")  # fmt: skip
                print(f"cold grants over 5 caps, {len(many)} callers at once: {batched:7.0f}/s")
        finally:
            server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=50_000)
    asyncio.run(main(parser.parse_args().decisions))
