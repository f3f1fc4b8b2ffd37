"""Names of models on Amazon Bedrock: ids, inference profiles and ARNs, taken apart. No I/O.

What can be told from the name is told here; whether a region offers a model, and where a profile
sends its calls, only AWS knows (``terrace_components.aws.bedrock_access`` asks it).
"""

import re
from dataclasses import dataclass
from typing import Literal, cast

ModelKind = Literal["foundation-model", "inference-profile", "application-inference-profile"]
KINDS: tuple[ModelKind, ...] = (
    "foundation-model",
    "inference-profile",
    "application-inference-profile",
)
# First part of a system-defined profile's id: where its calls may go. AWS adds to these now and
# then; an unknown one only makes ``parse_model`` take the profile for a foundation model.
GEOGRAPHIES = frozenset(
    {"us", "us-gov", "eu", "apac", "global", "jp", "au", "ca", "sa", "mx", "il", "me", "af", "uk"}
)

_ID = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]+)+(:[A-Za-z0-9-]+)*")
_ARN = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):bedrock:(?P<region>[a-z0-9-]*):(?P<account>\d{12})?:"
    r"(?P<kind>[a-z-]+)/(?P<name>[A-Za-z0-9.:-]+)"
)


@dataclass(frozen=True)
class BedrockModel:
    """A model as a caller of Bedrock names it."""

    kind: ModelKind
    name: str
    """The id without the rest of an ARN."""
    geography: str | None
    """``us``, ``eu``, ``global`` ... of an inference profile that AWS defines; else ``None``."""
    base_model: str | None
    """Id of the foundation model; ``None`` for an application inference profile."""
    partition: str | None = None
    """Of an ARN, such as ``aws-us-gov``; ``None`` for an id."""
    region: str | None = None
    """Of an ARN; empty for the foundation model of a global profile; ``None`` for an id."""
    account: str | None = None
    """Of the ARN of a profile; else ``None``."""


def parse_model(identifier: str) -> BedrockModel:
    """Takes apart a model id, an inference profile id or an ARN of one of ``KINDS``.

    Raises ``ValueError`` that says what would be valid.
    """
    if not identifier.startswith("arn:"):
        if _ID.fullmatch(identifier) is None:
            raise ValueError(
                "must be a Bedrock model id such as anthropic.claude-sonnet-4-5-20250929-v1:0, an"
                " inference profile id such as us.anthropic.claude-sonnet-4-5-20250929-v1:0, or"
                " the ARN of a profile"
            )
        geography, base = _split(identifier)
        kind = "foundation-model" if geography is None else "inference-profile"
        return BedrockModel(kind, identifier, geography, base)
    found = _ARN.fullmatch(identifier)
    if found is None or found["kind"] not in KINDS:
        raise ValueError(
            "must be the ARN of a model on Bedrock:"
            f" arn:<partition>:bedrock:<region>:[<account>]:<kind>/<id>, kind {' or '.join(KINDS)}"
        )
    kind = cast(ModelKind, found["kind"])
    if (kind == "foundation-model") != (found["account"] is None):
        raise ValueError(
            "an account is part of the ARN of a profile, and not of that of a foundation model"
        )
    name = found["name"]
    geography, base = _split(name) if kind == "inference-profile" else (None, name)
    return BedrockModel(
        kind,
        name,
        geography,
        None if kind == "application-inference-profile" else base,
        partition=found["partition"],
        region=found["region"],
        account=found["account"],
    )


def _split(name: str) -> tuple[str | None, str]:
    first, _, rest = name.partition(".")
    # "us.model" alone would be a vendor called us: a profile names geography, vendor and model.
    return (first, rest) if first in GEOGRAPHIES and "." in rest else (None, name)
