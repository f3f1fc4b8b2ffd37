"""`python -m terrace_blueprints.check_settings FILE`: are these settings right, before `up`?

Reads the `config:` mapping of the settings file FILE as JSON from stdin, and the governance spec,
where the stack has one (a file that it names is looked for in FILE's folder). When all is right:
the stage on stdout, exit code 0. When something is wrong: what, on stderr, exit code 2. Changes
nothing and needs no Pulumi engine, so that a wrong key costs a second and not a cluster.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terrace_blueprints.governance_spec import governance_text
from terrace_blueprints.settings import Settings, SettingsError, load_settings
from terrace_common.governance import GovernanceError


def check(configuration: Mapping[str, Any], file: Path) -> Settings:
    """The settings as the program will see them. Raises ``SettingsError``, ``GovernanceError``."""
    settings = load_settings(
        {key: _as_pulumi_gives(value) for key, value in configuration.items() if _is_plain(value)},
        file.name,
    )
    if settings.part != "substrate":
        try:
            governance_text(settings, file.parent)
        except SettingsError as error:
            raise SettingsError(f"{file.name}: {error}") from None
    return settings


def main() -> int:
    """Check what is on stdin. Returns the exit code."""
    try:
        settings = check(json.load(sys.stdin), Path(sys.argv[1]))
    except (SettingsError, GovernanceError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{settings.stage}\n")
    return 0


def _is_plain(value: Any) -> bool:
    """Not encrypted: what is, only Pulumi can read."""
    return not (isinstance(value, dict) and set(value) == {"secure"})


def _as_pulumi_gives(value: Any) -> Any:
    """Pulumi hands scalars to the program as text."""
    return json.dumps(value) if isinstance(value, bool | int | float) else value


if __name__ == "__main__":
    sys.exit(main())
