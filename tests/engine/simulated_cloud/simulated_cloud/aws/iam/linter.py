"""The linter library `parliament`, loaded on first use: it reads 10 MB of action definitions."""

import importlib.util
import re
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any


def in_partition_aws(text: str) -> str:
    """A document's text with the ARNs of partition aws: the library knows no other."""
    return re.sub(r"arn:aws-(cn|us-gov):", "arn:aws:", text)


def findings(text: str) -> list[Any]:
    """What the library says of a policy document of ``in_partition_aws``: objects with `issue` and
    `detail`."""
    return list(parliament().analyze_policy_string(text).findings)


@lru_cache(maxsize=1)
def parliament() -> Any:
    """The module. Raises `ModuleNotFoundError` when it is not installed."""
    stand_in = None
    if importlib.util.find_spec("pkg_resources") is None:
        # parliament asks pkg_resources for its data files; setuptools dropped that module in
        # version 82.
        stand_in = ModuleType("pkg_resources")
        stand_in.resource_filename = _resource_filename  # type: ignore[attr-defined]
        sys.modules["pkg_resources"] = stand_in
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it leaves its files open
            import parliament as module
    finally:
        if stand_in is not None:
            del sys.modules["pkg_resources"]
    return module


def _resource_filename(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    return str(Path(spec.origin).parent / name)
