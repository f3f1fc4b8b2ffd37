"""What a rule is: its data, what it may say, and the levels it is enforced at."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from terrace_policies.resources import Resource, Stack


class Severity(Enum):
    """How bad a violation is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Level(Enum):
    """What a violation does: a mandatory one stops the preview, an advisory one is printed."""

    ADVISORY = "advisory"
    MANDATORY = "mandatory"


@dataclass(frozen=True)
class Reference:
    """Where a rule comes from: a standard and its section, or a repository and its issue."""

    framework: str
    """Name of the standard, or ``field report`` for an issue or a measured fault."""
    reference: str
    """Section, control or ``owner/repository#number``."""

    def __str__(self) -> str:
        return f"{self.framework} {self.reference}"


@dataclass(frozen=True)
class Finding:
    """A violation: what is wrong at which property, and of which resource."""

    property: str
    """Path of the property in the spelling of the provider, ``vpcConfig.publicAccessCidrs``."""
    message: str
    """What is there and what should be; one sentence without a full stop."""
    urn: str = ""
    """Resource; stack rules say it, for resource rules it is the resource at hand."""


@dataclass(frozen=True)
class Unchecked:
    """A property that cannot be read yet; the rule has not passed."""

    property: str
    reason: str
    urn: str = ""


Says = Finding | Unchecked
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A value of a rule that a stack may set in ``terrace-policies.yaml``."""

    kind: type
    """``bool``, ``int``, ``str`` or ``list`` (of strings or whole numbers)."""
    default: Any
    meaning: str
    weaker: str = ""
    """Which values ask less than the default: ``lower``, ``higher``, ``any``, or none."""
    least: int | None = None
    most: int | None = None
    """Bounds of a number, or of each number in a list."""
    pattern: str = ""
    """What a text, or each text in a list, must match as a whole."""

    def problem(self, value: Any) -> str:
        """Why ``value`` cannot be taken; empty if it can."""
        if type(value) is not self.kind:
            return f"must be a {self.kind.__name__}"
        for item in cast(list[Any], value) if isinstance(value, list) else [value]:
            if self.least is not None or self.most is not None:
                low, high = self.least or 0, self.most
                if type(item) is not int or item < low or (high is not None and item > high):
                    return f"must be {f'{low} to {high}' if high is not None else f'{low} or more'}"
            elif isinstance(value, list) and not (isinstance(item, str) and item.strip()):
                return "must be a list of texts, none of them empty"
            if self.pattern and re.fullmatch(self.pattern, str(item)) is None:
                return f"{item!r} is too wide or is none: must match {self.pattern}"
        return ""

    def weakens(self, value: Any) -> bool:
        """Whether a stack that gives ``value`` asks less than the default does."""
        if self.weaker == "lower":
            return value < self.default
        if self.weaker == "higher":
            return value > self.default
        return self.weaker == "any" and value != self.default


@dataclass(frozen=True)
class Rule:
    """One rule of the book. Exactly one of ``resource`` and ``stack`` is set."""

    id: str
    description: str
    why: str
    remediation: str
    severity: Severity
    references: tuple[Reference, ...]
    types: tuple[str, ...] = ()
    """Type tokens of the resources it reads; ``kubernetes:*:Kind`` is that kind of any version."""
    resource: Callable[[Resource, Parameters], Iterable[Says]] | None = None
    stack: Callable[[Stack, Parameters], Iterable[Says]] | None = None
    level: Level = Level.MANDATORY
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    admission: bool = False
    """Whether the API server enforces it too (ValidatingAdmissionPolicy)."""
