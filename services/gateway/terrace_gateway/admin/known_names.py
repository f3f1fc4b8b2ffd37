"""Names that an administrator gives: a misspelt one would stop, or cap, nobody."""

from collections.abc import Collection

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.json_body import invalid

MAX_SHOWN = 20
TEAM_OF_KEYS = "SELECT EXISTS (SELECT FROM virtual_key WHERE team = %s)"
"""A team need not be declared: a spec without teams accepts any."""


def unknown_name(kind: str, name: str, known: Collection[str], param: str) -> ApiError:
    """The refusal of a name, with what would have been right."""
    shown = ", ".join(sorted(known)[:MAX_SHOWN]) or "none"
    more = ", ..." if len(known) > MAX_SHOWN else ""
    return invalid(f"there is no {kind} {name[:100]!r}; known: {shown}{more}", param)
