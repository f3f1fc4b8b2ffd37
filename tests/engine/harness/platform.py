"""Terrace on AWS: the two stacks of one platform, driven as `terrace up` and `terrace down` do."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.accounts import ADDRESSES, PREPARED
from harness.cloud import Cloud
from harness.engine import Engine
from harness.stack import Stack

Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Platform:
    """Substrate and platform stack in one account, on one machine."""

    substrate: Stack
    platform: Stack

    @classmethod
    def new(
        cls,
        folder: Path,
        settings: str,
        *,
        name: str = "",
        cloud: Cloud | None = None,
        disposable: bool = False,
    ) -> "Platform":
        """Both stacks with the committed settings, not up yet; in a fresh account unless one is
        given. ``disposable``: with what the settings need so that nothing outlives `destroy`."""
        if cloud is None:
            cloud = Cloud(folder / "cloud")
            for prepare in PREPARED[settings]:
                prepare(cloud)
        address = {"SIMULATED_CLOUD_ADDRESS": ADDRESSES[settings]}
        engine = Engine(folder / "machine", cloud, address)
        name = name or settings

        def read(config: dict[str, Any]) -> None:
            config["terrace:substrateStack"] = name

        return cls(
            Stack.of_terrace(engine, name, settings, make_disposable if disposable else None),
            Stack.of_terrace(engine, f"{name}-platform", f"{settings}-platform", read),
        )

    @property
    def cloud(self) -> Cloud:
        return self.substrate.engine.cloud

    def copy(self, to: Path) -> "Platform":
        """As it is now, with machine and account of its own."""
        engine = self.substrate.engine.copy(to)
        return Platform(self.substrate.on(engine), self.platform.on(engine))

    def up(self) -> None:
        self.substrate.up().must_work()
        self.platform.up().must_work()

    def change_aws(self, change: Change) -> None:
        """Edit the settings under ``terrace:aws`` of the substrate."""
        config = yaml.safe_load(self.substrate.settings.read_text())["config"]
        change(config)
        self.substrate.change(terrace__aws=config["terrace:aws"])

    def down(self) -> None:
        self.platform.destroy().must_work()
        self.substrate.destroy().must_work()


def make_disposable(config: dict[str, Any]) -> None:
    """By default the data outlive the stack: what docs/aws.md says to set before its end."""
    aws = config["terrace:aws"]
    aws.setdefault("cluster", {})["deletionProtection"] = False
    aws.setdefault("database", {}).update(deletionProtection=False, finalSnapshot=False)
    aws.setdefault("keys", {})["retain"] = False
    aws.setdefault("objects", {}).update(retain=False, deleteObjects=True)
