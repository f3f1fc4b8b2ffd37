"""An admitted caller, looked for again in a policy that came later."""

from datetime import datetime

from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.authentication.bearer import bearer_of
from terrace_gateway.calls.ports import Principal
from terrace_gateway.edge.errors import INVALID_API_KEY, ApiError
from terrace_gateway.policy.snapshot import Snapshot


def found_anew(admitted: Principal, snapshot: Snapshot, now: datetime) -> Principal:
    """The caller as ``snapshot`` has it: by its key, or by what its token says. Raises ``ApiError``
    if it would be refused by it."""
    if admitted.token is not None:
        return bearer_of(admitted.token, snapshot, now=now)
    key = snapshot.keys.get(admitted.caller.key_id)
    if key is None:
        raise ApiError(INVALID_API_KEY, "the API key is not valid")
    try:
        return snapshot.principal(key)
    except UnknownSubjectError:
        raise ApiError(
            INVALID_API_KEY, "the owner of this API key is not declared any more"
        ) from None
