"""Which kill switch ends a call that runs: by who its caller was when it was admitted, and by who
its caller is and whose its model is now."""

from datetime import datetime

import structlog

from terrace_gateway.calls.found_anew import found_anew
from terrace_gateway.calls.ports import Caller, Principal
from terrace_gateway.calls.running import RunningCall
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.snapshot import Snapshot

log = structlog.get_logger()


def kill_by_admission(call: RunningCall, snapshot: Snapshot) -> str | None:
    """Which switch of ``snapshot`` stops ``call`` by the names that it was admitted with, or by the
    provider that its model has now; costs a few look-ups."""
    found = snapshot.killed(call.principal.caller, model=call.model, provider=call.provider)
    if found is None:
        model = snapshot.governance.find_model(call.model)
        if model is not None and model.provider != call.provider:
            found = snapshot.killed(None, provider=model.provider)
    return found


def kill_by_caller_now(call: RunningCall, snapshot: Snapshot, now: datetime) -> str | None:
    """Which switch of ``snapshot`` stops the caller as ``snapshot`` has it.

    ``now`` is the database's time. A bearer of a token is looked for once per spec.
    """
    if call.principal.token is None:
        caller = _caller_now(call.principal, snapshot, now)
    else:
        if call.found is None or call.found[0] is not snapshot.compiled:
            call.found = snapshot.compiled, _caller_now(call.principal, snapshot, now)
        caller = call.found[1]
    return None if caller is None else snapshot.killed(caller)


def caller_kill(admitted: Principal, snapshot: Snapshot, now: datetime) -> str | None:
    """Which switch of ``snapshot`` stops a caller, by its admission or by ``snapshot``."""
    found = snapshot.killed(admitted.caller)
    if found is None and snapshot.kills:
        caller = _caller_now(admitted, snapshot, now)
        found = None if caller is None else snapshot.killed(caller)
    return found


def _caller_now(admitted: Principal, snapshot: Snapshot, now: datetime) -> Caller | None:
    """``None``: it may call no more. What it began ends by the names of its admission only."""
    try:
        return found_anew(admitted, snapshot, now).caller
    except ApiError:
        return None
    except Exception:  # the other calls must be looked at all the same
        log.exception("caller_not_found_anew", key_id=admitted.caller.key_id)
        return None
