"""How old the policy in force may be: the policy lease, and what follows its end."""

from typing import Literal

from terrace_gateway.calls.ports import EffectivePolicy
from terrace_gateway.frozen import frozen
from terrace_gateway.policy.snapshot import Snapshot


@frozen
class Standing:
    """``fresh``: the lease holds. ``limited``: it ended, and the caller's policy allows slices that
    are already granted for ``seconds_left`` more. ``ended``: nothing may be sent upstream."""

    state: Literal["fresh", "limited", "ended"]
    seconds_left: float


@frozen
class InForce:
    """A snapshot, and how long ago the question was sent whose answer last confirmed it."""

    snapshot: Snapshot
    age_seconds: float
    lease_seconds: float

    @property
    def fresh(self) -> bool:
        """The policy lease holds: what the snapshot does not have does not exist."""
        return self.age_seconds < self.lease_seconds

    def standing(self, policy: EffectivePolicy) -> Standing:
        """What holds for a caller with ``policy`` now."""
        left = self.lease_seconds - self.age_seconds
        if left > 0:
            return Standing("fresh", left)
        left += policy.outage_grace_seconds
        if policy.outage == "limited" and left > 0:
            return Standing("limited", left)
        return Standing("ended", 0.0)
