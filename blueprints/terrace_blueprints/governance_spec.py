"""The governance spec of a stack: the one that its settings name, or the substrate's own."""

from pathlib import Path

import terrace_common
from terrace_blueprints.settings import Settings, SettingsError
from terrace_common.governance import load_governance

GOVERNANCE_SPECS = Path(terrace_common.__file__).parent / "examples"
# Substrate -> its own spec. On existing that is the simulated providers', which must be asked for.
DEFAULTS = {"local": "local", "existing": "local", "aws": "aws"}


def governance_text(settings: Settings, root: Path) -> str:
    """Text of the stack's spec, valid. ``root`` is the folder of ``Pulumi.yaml``.

    Raises ``SettingsError`` or ``GovernanceError``.
    """
    if settings.governance_file is not None:
        return read_spec(root / settings.governance_file)
    path = GOVERNANCE_SPECS / f"governance.{DEFAULTS[settings.substrate]}.yaml"
    text = read_spec(path)
    if settings.substrate == "aws":
        _is_of_the_region(text, path, settings.region)
    return text


def read_spec(path: Path) -> str:
    """Text of a governance spec, valid. Raises ``SettingsError`` or ``GovernanceError``."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SettingsError(
            f"terrace:governanceFile: cannot read {path}: {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"terrace:governanceFile: cannot read {path}: {error}") from None
    load_governance(text, str(path))
    return text


def _is_of_the_region(text: str, path: Path, region: str | None) -> None:
    """Models, inference profiles and prices are a region's: the default spec is of one."""
    regions = {
        provider.region
        for provider in load_governance(text, str(path)).providers
        if provider.kind == "bedrock"
    }
    if region not in regions:
        raise SettingsError(
            f"terrace:governanceFile: is required in {region}, because the default spec names "
            f"models and prices of {', '.join(sorted(regions))}; copy "
            f"services/common/terrace_common/examples/{path.name} and edit the copy"
        )
