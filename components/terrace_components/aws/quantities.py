"""Kubernetes quantities of CPU and memory as numbers."""

import re

_UNITS_MIB = {
    "": 1 / 2**20,
    "k": 1e3 / 2**20,
    "M": 1e6 / 2**20,
    "G": 1e9 / 2**20,
    "T": 1e12 / 2**20,
    "Ki": 1 / 2**10,
    "Mi": 1.0,
    "Gi": 2.0**10,
    "Ti": 2.0**20,
}


def millicores(quantity: str) -> int:
    """``500m`` or ``1.5`` as thousandths of a core. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", quantity)
    if match is None:
        raise ValueError("must be a quantity of CPU such as 500m or 2")
    return round(float(match[1]) * (1 if match[2] else 1000))


def mebibytes(quantity: str) -> int:
    """``2Gi`` or ``500Mi`` in MiB, rounded up. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?", quantity)
    if match is None:
        raise ValueError("must be a quantity of memory such as 500Mi or 2Gi")
    exact = float(match[1]) * _UNITS_MIB[match[2] or ""]
    return int(exact) + (exact % 1 > 0)
