"""Problems of IAM documents, by the linter of the simulated cloud, and stricter than there."""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

# The package is not installed in the house's environment, and --import-mode=importlib puts no
# folder on the path.
sys.path.append(str(Path(__file__).resolve().parents[2] / "engine" / "simulated_cloud"))

from simulated_cloud.aws.iam.linter import findings, in_partition_aws

# Says of a type that it is not the documented one; IAM takes it.
USABLE = {"MISMATCHED_TYPE_BUT_USABLE"}


def problems(document: str | dict[str, Any]) -> list[str]:
    """What is wrong, one line each.

    The library wants a resource of each type that an action knows, and reads a colon in a name as
    the end of it (``...-v1:0``): a resource that fits one of the documented formats is right.
    """
    text = document if isinstance(document, str) else json.dumps(document)
    parsed = json.loads(in_partition_aws(text))
    found: list[str] = []
    for statement in parsed["Statement"]:
        alone = json.dumps({**parsed, "Statement": [statement]})
        for finding in findings(alone):
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
        for finding in findings(document)
        if finding.issue == "RESOURCE_MISMATCH"
        for entry in finding.detail
    ]
    return all(any(fnmatch(name, known) for known in formats) for name in statement["Resource"])
