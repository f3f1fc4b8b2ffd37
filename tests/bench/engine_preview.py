"""Seconds of `pulumi preview` of aws-stage1 in the simulated cloud, with and without policies.

    .venv/bin/python tests/bench/engine_preview.py [--repeat 5] [--warm-up 1]

Previews of the stack before its first `up` (everything is to be created: the longest one), the two
kinds in turn, so that what else the machine does falls on both. Prints each run, the medians and
the difference. Asserts nothing.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engine"))

from harness import Platform  # noqa: E402  it is on the path only now

PACK = ROOT / "policies" / "terrace-policies"


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="previews of each kind")
    parser.add_argument("--warm-up", type=int, default=1, help="previews that are not counted")
    options = parser.parse_args()
    kinds: dict[str, list[str]] = {"without policies": [], "with policies": []}
    if PACK.exists():
        kinds["with policies"] = ["--policy-pack", str(PACK)]
    else:
        print(f"there is no {PACK.relative_to(ROOT)}: measured without policies only")
        del kinds["with policies"]
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        stack = Platform.new(Path(folder), "aws-stage1").substrate
        for number in range(options.warm_up + options.repeat):
            for kind, arguments in kinds.items():
                began = time.monotonic()
                run = stack.preview(*arguments)
                took = time.monotonic() - began
                if not run.ok:
                    print(run.errors or run.output)
                    return 1
                if number >= options.warm_up:
                    seconds[kind].append(took)
                    print(f"{kind:20} {took:6.2f} s   {len(run.changes)} resources")
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    for kind, median in medians.items():
        spread = max(seconds[kind]) - min(seconds[kind])
        print(f"median {kind:20} {median:6.2f} s   (spread {spread:.2f} s)")
    if len(medians) == 2:
        without, checked = medians["without policies"], medians["with policies"]
        print(f"the pack adds {checked - without:.2f} s ({checked / without:.2f} times)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
