"""Problems of IAM documents, by the linter library ``parliament``."""

import importlib.util
import json
import re
import sys
import warnings
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

# Says of a type that it is not the documented one; IAM takes it.
USABLE = {"MISMATCHED_TYPE_BUT_USABLE"}


@lru_cache(maxsize=1)
def _parliament() -> Any:
    stand_in = None
    if importlib.util.find_spec("pkg_resources") is None:
        # It asks pkg_resources for its data files; new versions of setuptools have none.
        stand_in = ModuleType("pkg_resources")
        stand_in.resource_filename = _file_of  # type: ignore[attr-defined]
        sys.modules["pkg_resources"] = stand_in
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it leaves its files open
            import parliament
    finally:
        if stand_in is not None:
            del sys.modules["pkg_resources"]
    return parliament


def _file_of(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / name)


def problems(document: str | dict[str, Any]) -> list[str]:
    """What is wrong, one line each.

    The library wants a resource of each type that an action knows, and reads a colon in a name as
    the end of it (``...-v1:0``): a resource that fits one of the documented formats is right.
    """
    text = document if isinstance(document, str) else json.dumps(document)
    # Its definitions are of partition aws.
    parsed = json.loads(re.sub(r"arn:aws-(cn|us-gov):", "arn:aws:", text))
    found: list[str] = []
    for statement in parsed["Statement"]:
        alone = json.dumps({**parsed, "Statement": [statement]})
        for finding in _parliament().analyze_policy_string(alone).findings:
            fits = finding.issue == "RESOURCE_MISMATCH" and _fits(statement)
            if finding.issue not in USABLE and not fits:
                found.append(f"{finding.issue}: {finding.detail}")
    return found


def _fits(statement: dict[str, Any]) -> bool:
    """Whether each resource has one of the formats that the actions know."""
    foreign = {**statement, "Resource": ["arn:aws:nothing:::none"]}
    document = json.dumps({"Version": "2012-10-17", "Statement": [foreign]})
    formats = [
        entry["required_format"]
        for finding in _parliament().analyze_policy_string(document).findings
        if finding.issue == "RESOURCE_MISMATCH"
        for entry in finding.detail
    ]
    return all(any(fnmatch(name, known) for known in formats) for name in statement["Resource"])
