"""What the policy in force costs with few and with many keys, side by side.

    .venv-services/bin/python tests/bench/policy_snapshot.py [KEYS TEAMS]

Real Postgres of its own. Prints, for 10 keys and 1 team and for KEYS (10,000) and TEAMS (1,000):
the first load, one call's authentication (warm, and a key's first), the reload after one key
changed, and after a new governance version; then the ratios. Flat is 1.
"""

import asyncio
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "service/gateway/rig"))

from gateway_rig.policy import PEPPER, Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_gateway.authentication.keys import hash_key, mint_key, mint_key_id

CALLS = 20_000
FIRSTS = 200


def spec(teams: int) -> str:
    lines = [example_text(), "orgs: [{name: acme, quotas: [{dimension: requests, amount: 1000000,"]
    lines.append(" per: minute}, {dimension: micro_usd, amount: 1000000000, per: month}]}]")
    lines.append("policies: [{name: short, max_output_tokens: 100}]\nteams:")
    lines += [
        f"- {{name: t{number}, org: acme, policies: [short],"
        " quotas: [{dimension: micro_usd, amount: 1000000, per: month}]}"
        for number in range(teams)
    ]
    return "\n".join(lines) + "\n"


def insert_keys(postgres: Postgres, database: str, keys: int, teams: int) -> list[str]:
    minted = [mint_key() for _ in range(keys)]
    with postgres.superuser(database) as connection, connection.transaction():
        cursor = connection.cursor()
        ids = [mint_key_id() for _ in minted]
        cursor.executemany(
            "INSERT INTO virtual_key (key_id, key_hash, team) VALUES (%s, %s, %s)",
            [
                (key_id, hash_key(PEPPER, key), f"t{number % teams}")
                for number, (key_id, key) in enumerate(zip(ids, minted, strict=True))
            ],
        )
        cursor.executemany(
            "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
            " VALUES ('key', %s, 'micro_usd', 0, 1000000)",
            [(key_id,) for key_id in ids],
        )
    return minted


async def authenticate(replica: Replica, keys: list[str]) -> float:
    """Microseconds per call."""
    began = time.perf_counter()
    for key in keys:
        await replica.call(key)
    return (time.perf_counter() - began) / len(keys) * 1e6


async def reloads(replica: Replica, times: int = 15) -> float:
    """Milliseconds from a committed change of one key to the new snapshot."""
    found: list[float] = []
    for _ in range(times):
        await replica.mint(team="t0")
        began = time.perf_counter()
        await replica.feed.refresh()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found)


async def measure(postgres: Postgres, keys: int, teams: int) -> dict[str, float]:
    name = f"bench_{keys}"
    with postgres.superuser() as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER gateway")
    result: dict[str, float] = {}
    async with replica_of(postgres, name) as replica:
        began = time.perf_counter()
        await replica.apply(spec(teams))
        result["apply s"] = time.perf_counter() - began
        minted = insert_keys(postgres, name, keys, teams)
        tracemalloc.start()
        began = time.perf_counter()
        await replica.feed.refresh()
        result["first load s (traced)"] = time.perf_counter() - began
        result["memory MB"] = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.stop()
        firsts = minted[: min(FIRSTS, keys)]
        result["first call of a key us"] = await authenticate(replica, firsts)
        spread = [minted[(number * 7919) % keys] for number in range(CALLS)]
        await authenticate(replica, spread)
        result["call us"] = min([await authenticate(replica, spread) for _ in range(3)])
        result["reload of one key ms"] = await reloads(replica)
        await replica.apply(spec(teams) + "# next\n")
        began = time.perf_counter()
        await replica.feed.refresh()
        result["reload of a version s"] = time.perf_counter() - began
    return result


async def main() -> None:
    keys, teams = (int(word) for word in (sys.argv[1:3] or ("10000", "1000")))
    with tempfile.TemporaryDirectory(prefix="terrace-postgres-") as folder:
        postgres = Postgres(Path(folder))
        postgres.create()
        try:
            few = await measure(postgres, 10, 1)
            many = await measure(postgres, keys, teams)
        finally:
            postgres.stop()
    print(f"{'':28}{'10 keys, 1 team':>18}{f'{keys} keys, {teams} teams':>28}{'ratio':>10}")
    for what in few:
        print(f"{what:28}{few[what]:18.3f}{many[what]:28.3f}{many[what] / few[what]:10.2f}")


asyncio.run(main())
