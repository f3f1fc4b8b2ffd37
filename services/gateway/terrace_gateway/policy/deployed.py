"""What the translator beside this process serves, and which models of a version that excludes."""

from collections.abc import Mapping
from typing import cast

from terrace_common.governance import Governance
from terrace_common.translator_config import translator_config

_TIMES = ("timeout", "stream_timeout")


class Deployed:
    """The translator's models as the file that both containers were started with declares them."""

    def __init__(self, governance: Governance) -> None:
        self._entries = _entries(governance)
        self._limit = governance.defaults.hard_stream_limit_seconds

    def missing(self, governance: Governance) -> dict[str, str]:
        """Models of ``governance`` that the translator does not serve so, each with the reason.

        Catalogue data and prices may differ; what the translator calls, and how, may not.
        """
        found: dict[str, str] = {}
        for name, wanted in _entries(governance).items():
            known = self._entries.get(name)
            if known is None:
                found[name] = "the translator was not started with it"
            elif known != wanted:
                differing = sorted(
                    key for key in known.keys() | wanted.keys() if known.get(key) != wanted.get(key)
                )
                found[name] = f"the translator was started with another {', '.join(differing)}"
        if governance.defaults.hard_stream_limit_seconds > self._limit:
            text = f"the translator ends calls after hard_stream_limit_seconds {self._limit}"
            found |= {name: text for name in _entries(governance) if name not in found}
        return found


def _entries(governance: Governance) -> dict[str, Mapping[str, object]]:
    listed = cast("list[dict[str, object]]", translator_config(governance)["model_list"])
    entries: dict[str, Mapping[str, object]] = {}
    for entry in listed:
        params = cast("dict[str, object]", entry["litellm_params"])
        entries[str(entry["model_name"])] = {
            key: value for key, value in params.items() if key not in _TIMES
        }
    return entries
