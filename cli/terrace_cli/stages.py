"""The stages that this release can bring up."""

from terrace_cli.errors import UsageError

STAGES = (1, 2, 3)
BUILT_STAGES = (1,)


def check_stage(stage: int) -> None:
    """Raise UsageError, naming what would be right, unless this stage can be brought up."""
    if stage not in STAGES:
        raise UsageError(f"There is no stage {stage}. Stages are 1, 2 and 3; 1 is the default.")
    if stage not in BUILT_STAGES:
        raise UsageError(f"stage {stage} is not built yet in this release, which has stage 1.")
