"""A guard that stands still in a change: ``python -m gateway_rig.frozen_change URL POINT TEXT``."""

import asyncio
import os
import signal
import sys

from pydantic import SecretStr

from terrace_common.governance import load_governance
from terrace_gateway.admin import kill
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import Database
from terrace_gateway.policy import versions
from terrace_gateway.policy.deployed import Deployed


async def main(url: str, point: str, text: str) -> None:
    """Says ``frozen`` at the crash point ``point``, and how the change went once it goes on."""

    def freeze(name: str) -> None:
        if name == point:
            print("frozen", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    kill.reach = versions.reach = freeze
    database = Database(SecretStr(url), size=2, wait_seconds=2)
    await database.open()
    await database.prepare()
    await database.probe()
    try:
        if point.startswith("kill."):
            switches = kill.KillStore(database)
            await switches.kill("team", ["team-z"], version=None, actor="bob", reason="r")
        else:
            made = versions.GovernanceVersions(database, Deployed(load_governance(text, "file")))
            await made.apply(text, actor="bob", reason="r", check_base=False)
        print("made", flush=True)
    except AuthorityUnavailableError as error:
        print(type(error).__name__, flush=True)
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
