"""Where the platform answers: written by `terrace up`, read by people and scripts."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from terrace_cli.errors import NotRunningError
from terrace_cli.places import endpoints_file

_NAMES = ("gateway", "admin", "prometheus", "simulator")


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Base URLs without a trailing slash. `gateway` takes `/v1` (OpenAI) or nothing (Bedrock)."""

    gateway: str
    admin: str
    prometheus: str
    simulator: str

    def as_json(self) -> dict[str, str]:
        """The stable document of `terrace endpoints --json` and `.terrace/endpoints.json`."""
        return asdict(self)


def write_endpoints(endpoints: Endpoints, path: Path | None = None) -> Path:
    """Replace the file as a whole, so that a reader never sees half of it."""
    target = path or endpoints_file()
    target.parent.mkdir(exist_ok=True)
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(endpoints.as_json(), indent=2) + "\n")
    draft.replace(target)
    return target


def read_endpoints(path: Path | None = None) -> Endpoints:
    """What the last `terrace up` of this clone wrote. Raises NotRunningError when there is none."""
    source = path or endpoints_file()
    try:
        document = json.loads(source.read_text())
        return Endpoints(**{name: str(document[name]) for name in _NAMES})
    except FileNotFoundError:
        raise NotRunningError(
            f"The platform is not up from this clone: {source} does not exist. "
            "Start it with `terrace up`."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise NotRunningError(
            f"{source} is damaged: it should be a JSON object with {', '.join(_NAMES)}. "
            "`terrace up` writes it again."
        ) from None
