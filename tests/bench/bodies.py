"""CPU milliseconds that the largest and heaviest bodies hold the guard's event loop, per surface.

    .venv-services/bin/python tests/bench/bodies.py [--all]

Each body of ``tests/unit/gateway/heavy_bodies.py`` goes through all that its surface does before
anything is sent (parsing, reading, needs, texts, session, the request for one candidate): once as
large as the limits let it pass, and once of 4 MiB, which most limits refuse. Least of three; a
small chat body beside them for scale. Asserts nothing.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from gateway.heavy_bodies import EVERY, Heavy, run

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.settings import Settings

LIMIT = Settings().max_json_values


def measured(heavy: Heavy, body: bytes) -> tuple[float, str]:
    """Milliseconds, and how it ended."""
    least, ended = float("inf"), "taken"
    for _ in range(3):
        began = time.thread_time_ns()
        try:
            run(heavy, body, max_values=LIMIT)
        except ApiError as error:
            ended = str(error.status)
        least = min(least, (time.thread_time_ns() - began) / 1e6)
    return least, ended


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every body, not the worst alone")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, str, str, int]]] = {}
    for heavy in EVERY:
        for body in (heavy.taken(LIMIT), heavy.body()):
            taken, ended = measured(heavy, body)
            found.setdefault(heavy.path, []).append((taken, heavy.name, ended, len(body)))
    print(f"{'surface':32} {'ms':>8}  {'MB':>5}  {'ends':5}  body")
    for path, rows in found.items():
        rows.sort(reverse=True)
        for taken, name, ended, size in rows if options.all else rows[:3]:
            print(f"{path:32} {taken:8.1f}  {size / 1e6:5.2f}  {ended:5}  {name}")
    small = Heavy(EVERY[0].path, "small", EVERY[0].head, "[]", "]}")
    print(f"{'a small chat body':32} {measured(small, small.body(most=1))[0]:8.3f}")


if __name__ == "__main__":
    main()
