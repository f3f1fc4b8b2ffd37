"""Every change of the policy that the admin API has, with a body that is taken."""

from typing import Any

from gateway_rig.admin import Admin

BOOK = {
    "version": "b1",
    "entries": [
        {"provider": "simulator-openai", "model": "sim-small",
         "effective_from": "2020-01-01T00:00:00Z",
         "price": {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1}},
    ],
}  # fmt: skip
STOP = {"target": "team:team-a", "reason": "r"}
CAP = {"scope": "team", "scope_id": "team-a", "dimension": "micro_usd", "amount": 7, "reason": "r"}
KEY = {"team": "team-a"}
QUOTA = {"dimension": "requests", "window_seconds": 60, "quota_code": "L-1", "quota_name": "n",
         "quota_value": 20, "source": "default", "amount": 18}  # fmt: skip
POOL = {"pool": "us-east-1/anthropic.claude-sonnet-4-5-20250929-v1:0", "access": "available",
        "quotas": [QUOTA]}  # fmt: skip
QUOTAS = {"holder": "h", "fence": 1, "governance_version": 1, "stale_after_seconds": 60,
          "stale_percent": 50, "reason": "r",
          "regions": [{"region": "us-east-1", "age_seconds": 1, "pools": [POOL]}]}  # fmt: skip
CHANGES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/keys"): KEY, ("POST", "/keys/{key_id}/revoke"): {},
    ("POST", "/keys/{key_id}/rotate"): {}, ("POST", "/kill"): STOP, ("POST", "/unkill"): STOP,
    ("DELETE", "/kill"): STOP, ("PUT", "/caps"): CAP,
    ("POST", "/governance/apply"): {"base_version": 1, "reason": "r"},
    ("POST", "/governance/rollback"): {"version": 1, "reason": "r"},
    ("POST", "/prices"): {"book": BOOK, "reason": "r"},
    ("POST", "/prices/use"): {"version": "b0", "reason": "r"},
    ("PUT", "/upstream-quotas"): QUOTAS,
}  # fmt: skip
"""``apply`` needs a ``text``: see ``made_ready``."""


async def made_ready(
    admin: Admin, change: tuple[str, str], text: str
) -> tuple[str, str, dict[str, Any]]:
    """Have what ``change`` needs. ``text`` is in force, as version 1. What to send."""
    method, path = change
    body = CHANGES[change]
    following = {**CHANGES["POST", "/governance/apply"], "text": text + "# next\n"}
    made = await admin.ok("POST", "/keys", KEY)
    await admin.ok("POST", "/leases/quota-sync", {"holder": "h", "seconds": 60})
    if "kill" in path and change != ("POST", "/kill"):
        await admin.ok("POST", "/kill", STOP)
    if path == "/governance/apply":
        body = following
    if path == "/governance/rollback":
        await admin.ok("POST", "/governance/apply", following)
    if path == "/prices/use":
        for version in ("b0", "b1"):
            await admin.ok("POST", "/prices", {"book": {**BOOK, "version": version}, "reason": "r"})
    return method, path.replace("{key_id}", made["key_id"]), body
