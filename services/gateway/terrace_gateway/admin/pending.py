"""Whether this replica goes by a change that is committed already.

The change is made whatever comes after its commit: its answer is the only one that shows a new
secret, and who is told of a failure makes it again.
"""

import asyncio

import structlog

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.policy.feed import PolicyFeed

log = structlog.get_logger()

PENDING = "pending_here"
PENDING_SCHEMA = {
    "type": "string",
    "description": "Only if this replica could not confirm the change: why. It is committed, and"
    " holds on the others within one policy lease; do not send it again.",
}
WAIT_SECONDS = 10
"""Below what clients wait for an answer (30 s)."""


async def pending_here(policy: PolicyFeed) -> str | None:
    """Have this replica go by what is committed. Why it does not yet, in words; ``None``: it does.

    Raises nothing.
    """
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await policy.refresh()
    except AuthorityUnavailableError as error:
        why = str(error)
    except TimeoutError:
        why = f"it takes longer than {WAIT_SECONDS} s"
    except Exception as error:
        log.exception("defect")
        why = f"a defect of ours ({type(error).__name__})"
    else:
        return None
    log.warning("change_pending_here", why=why)
    return why
