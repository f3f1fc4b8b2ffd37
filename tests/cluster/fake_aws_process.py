"""The fake of AWS's APIs (tests/service/quota_sync/fake_aws.py) as a process on the node's address.

Argument: the address. A line on stdin is what a region answers from now on, `{"region": ...,
"applied": {code: [name, value]}, "models": [[id, vendor, name]]}`; it is answered by a line on
stdout, `{"port": ..., "calls": ..., "unsigned": ...}`. Ends with its stdin.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "service" / "quota_sync"))

from fake_aws import FakeAws, Region


async def main() -> None:
    fake = FakeAws()
    await fake.start(sys.argv[1])
    while line := await asyncio.to_thread(sys.stdin.readline):
        given = json.loads(line)
        fake.regions[given["region"]] = Region(
            applied={code: tuple(quota) for code, quota in given["applied"].items()},
            models=[tuple(model) for model in given["models"]],
        )
        said = {
            "port": int(fake.url.rsplit(":", maxsplit=1)[1]),
            "calls": len(fake.calls),
            "unsigned": sum(not call.signed for call in fake.calls),
        }
        print(json.dumps(said), flush=True)
    await fake.stop()


asyncio.run(main())
