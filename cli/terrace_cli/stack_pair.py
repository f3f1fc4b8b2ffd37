"""Which Pulumi stacks a name stands for: on aws the substrate and the platform, elsewhere one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrace_cli.errors import UsageError
from terrace_cli.places import STACK
from terrace_cli.stack_settings import checked_stage, configuration, settings_file

PLATFORM_SUFFIX = "-platform"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class CloudStack:
    """One Pulumi stack. `part` is the setting `terrace:part`: all, substrate or platform."""

    name: str
    part: str
    file: Path


def read_stacks(clone: Path, name: str) -> list[CloudStack]:
    """The stacks that `--stack NAME` means, in the order in which they come up.

    Raises UsageError for a name without a settings file, for the platform half of a pair, and for
    two files that do not belong together.
    """
    settings = _settings(clone, name)
    substrate = settings.get("terrace:substrate", "local")
    part = settings.get("terrace:part", "all")
    if substrate == "local" or (substrate == "aws" and part not in ("substrate", "platform")):
        # Perhaps the key is misspelt: the program's own check names it.
        checked_stage(clone, None, name)
    if substrate == "local":
        raise UsageError(
            f"{settings_file(clone, name).name} says substrate local, and the local stack has the "
            f"name `{STACK}`: leave --stack out, or set terrace:substrate to aws or existing."
        )
    if part == "platform":
        raise UsageError(
            f"{name} is the platform of a pair of stacks. Name the pair by its substrate: "
            f"--stack {settings.get('terrace:substrateStack', name.removesuffix(PLATFORM_SUFFIX))}."
        )
    first = CloudStack(name=name, part=part, file=settings_file(clone, name))
    if part != "substrate":
        return [first]
    platform = name + PLATFORM_SUFFIX
    other = _settings(clone, platform)
    for key, wanted in (
        ("terrace:substrate", substrate),
        ("terrace:part", "platform"),
        ("terrace:substrateStack", name),
    ):
        if other.get(key) != wanted:
            raise UsageError(
                f"{settings_file(clone, platform).name}: {key} is {other.get(key)!r}; as the "
                f"platform on {name} it must be {wanted!r}."
            )
    return [first, CloudStack(name=platform, part="platform", file=settings_file(clone, platform))]


def check_stacks(clone: Path, stacks: list[CloudStack], stage: int | None) -> int:
    """The stage of all these stacks, once every settings file has passed the program's own check.

    `stage` is the one asked for, else the files say it. Raises UsageError.
    """
    stages = {stack.name: checked_stage(clone, stage, stack.name) for stack in stacks}
    regions = {stack.name: configuration(clone, stack.name).get("aws:region") for stack in stacks}
    if len(set(regions.values()) - {None}) > 1:
        told = ", ".join(f"{value} in Pulumi.{name}.yaml" for name, value in regions.items())
        raise UsageError(f"aws:region is {told}: the platform lives where its substrate is.")
    if len(set(stages.values())) > 1:
        told = ", ".join(f"{value} in Pulumi.{name}.yaml" for name, value in stages.items())
        raise UsageError(f"terrace:stage is {told}: give both files the same, or use --stage.")
    return stages[stacks[0].name]


def _settings(clone: Path, name: str) -> Mapping[str, Any]:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no stack name: letters, digits, '-', '_' and '.'.")
    if not settings_file(clone, name).is_file():
        raise UsageError(
            f"There is no {settings_file(clone, name).name} in {clone}. "
            f"Stacks with settings there: {', '.join(_names(clone)) or 'none'}."
        )
    return configuration(clone, name)


def _names(clone: Path) -> list[str]:
    names = (file.name.removeprefix("Pulumi.") for file in clone.glob("Pulumi.*.yaml"))
    return sorted(name.removesuffix(".yaml") for name in names)
