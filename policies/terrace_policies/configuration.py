"""``terrace-policies.yaml``: parameters, rules made advisory, resources exempted.

A weaker rule needs a reason and an end, at most a year away. An entry that is wrong, expired or of
no use is itself a mandatory violation (rule ``policy-configuration``), so that none is forgotten.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import yaml

from terrace_policies.model import Level, Parameter, Rule
from terrace_policies.resources import Resource

ENVIRONMENT = "TERRACE_POLICY_CONFIG"
DEFAULT_FILE = "terrace-policies.yaml"
PROJECT_FILE = "Pulumi.yaml"
RULE_ID = "policy-configuration"
_KIND = re.compile(r"[a-z][\w.-]*:[\w.-]+(/|:)")
LONGEST = timedelta(days=366)
_TOP = {"version", "trial", "parameters", "advisory", "exemptions"}
_TRIAL = {"reason", "expires", "stacks"}
_WEAKENED = {"value", "reason", "expires"}
_ENTRY = {"rule", "resource", "reason", "expires", "stacks"}


@dataclass
class Entry:
    """A rule made advisory (no resource) or a resource exempted from it."""

    rule: str
    resource: str | None
    stacks: tuple[str, ...]
    where: str
    used: bool = False

    def covers(self, rule: Rule, resource: Resource | None) -> bool:
        """Whether the entry speaks of this rule on this resource."""
        if rule.id != self.rule or not self.in_stack(resource):
            return False
        if self.resource is None:
            return True
        if resource is None:
            return False
        own = resource.urn.split("::")[-2:][0].rpartition("$")[2]  # not the usual token
        names = [resource.urn, *(f"{t}::{resource.name}" for t in (resource.type, own))]
        return any(fnmatchcase(name, self.resource) for name in names)

    def in_stack(self, resource: Resource | None) -> bool:
        """Whether the entry is meant for the resource's stack."""
        if not self.stacks or resource is None:
            return True
        return any(fnmatchcase(resource.stack_name, pattern) for pattern in self.stacks)


@dataclass
class Configuration:
    """What a stack asks of the rules. The default asks for nothing."""

    trial: bool = False
    trial_stacks: tuple[str, ...] = ("*",)
    """Patterns of the stacks that the trial is for."""
    parameters: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    entries: list[Entry] = field(default_factory=list[Entry])
    problems: list[str] = field(default_factory=list[str])
    """Sentences, each naming the place in the file; each is a mandatory violation."""

    def parameters_of(self, rule: Rule) -> dict[str, Any]:
        """Values of the rule's parameters, defaults filled in."""
        given = self.parameters.get(rule.id, {})
        return {name: given.get(name, p.default) for name, p in rule.parameters.items()}

    def is_trial(self, stack_name: str) -> bool:
        """Whether a stack is an evaluation only."""
        return self.trial and any(fnmatchcase(stack_name, p) for p in self.trial_stacks)

    def level_of(self, rule: Rule, resource: Resource | None) -> Level:
        """The level of a rule, advisory where an entry says so."""
        for entry in self.entries:
            if entry.resource is None and entry.covers(rule, resource):
                entry.used = True
                return Level.ADVISORY
        return rule.level

    def exempts(self, rule: Rule, resource: Resource | None) -> bool:
        """Whether an entry takes this resource out of the rule."""
        found = [e for e in self.entries if e.resource is not None and e.covers(rule, resource)]
        for entry in found:
            entry.used = True
        return bool(found)

    def unused(self, stack_name: str) -> Iterator[str]:
        """One sentence per entry that changed nothing in this stack."""
        for entry in self.entries:
            here = not entry.stacks or any(fnmatchcase(stack_name, p) for p in entry.stacks)
            if here and not entry.used:
                yield (
                    f"{entry.where}: nothing violates {entry.rule}"
                    f"{f' at {entry.resource}' if entry.resource else ''} any more; remove the"
                    " entry, or name the stacks it is for under `stacks`"
                )


def find_configuration(rules: Iterable[Rule], today: date, file: str = "") -> Configuration:
    """The configuration of ``file``, else of ``TERRACE_POLICY_CONFIG``, else of the project (beside
    ``Pulumi.yaml``); without any, the default.

    A relative name is looked for in the working directory, then beside ``Pulumi.yaml``: the engine
    starts packs in the folder of the program, not where the command was typed.
    """
    named = file or os.environ.get(ENVIRONMENT, "")
    places = _places(named) if named else [folder / DEFAULT_FILE for folder in _folders()]
    path = next((place for place in places if place.is_file()), None)
    if path is None and not named:
        return Configuration()
    if path is None:
        return Configuration(problems=[f"{named}: there is no {' and no '.join(map(str, places))}"])
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Configuration(problems=[f"{path}: cannot be read: {type(error).__name__}"])
    return read_configuration(text, named or str(path), rules, today)


def _places(named: str) -> list[Path]:
    here, top = Path.cwd(), _folders()[-1]
    places = [here / named]  # an absolute name stays what it is
    if (top / PROJECT_FILE).is_file():
        places.append(top / named)
    return list(dict.fromkeys(places))


def _folders() -> list[Path]:
    """The working directory and those above it, up to the one with ``Pulumi.yaml``."""
    folders: list[Path] = []
    for folder in (Path.cwd(), *Path.cwd().parents):
        folders.append(folder)
        if (folder / PROJECT_FILE).is_file():
            break
    return folders


def read_configuration(text: str, source: str, rules: Iterable[Rule], today: date) -> Configuration:
    """Parse a configuration. What is wrong in it goes to ``problems`` and has no effect."""
    read = Configuration()
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # the second: a date that does not exist
        read.problems.append(f"{source}: not YAML: {str(error).splitlines()[0]}")
        return read
    if not isinstance(data, dict):
        read.problems.append(f"{source}: must be a mapping with the keys {_listed(_TOP)}")
        return read
    document = cast(dict[str, Any], data)
    reader = _Reader(source, {rule.id: rule for rule in rules}, today, read)
    reader.read(document)
    return read


class _Reader:
    def __init__(
        self, source: str, rules: dict[str, Rule], today: date, into: Configuration
    ) -> None:
        self._source = source
        self._rules = rules
        self._today = today
        self._into = into

    def read(self, document: dict[str, Any]) -> None:
        for key in document:
            if key not in _TOP:
                self._wrong(str(key), f"unknown key; valid keys: {_listed(_TOP)}")
        if document.get("version") != 1:
            self._wrong("version", "must be 1")
        self._read_trial(document.get("trial", False))
        self._read_parameters(document.get("parameters") or {})
        for section in ("advisory", "exemptions"):
            entries = document.get(section) or []
            if not isinstance(entries, list):
                self._wrong(section, "must be a list")
                continue
            for index, entry in enumerate(cast(list[Any], entries)):
                self._read_entry(f"{section}[{index}]", entry, needs_resource=section != "advisory")

    def _read_trial(self, given: Any) -> None:
        if given is False:
            return
        before = len(self._into.problems)
        if not isinstance(given, dict):
            self._wrong("trial", f"must be false or a mapping with the keys {_listed(_TRIAL)}")
            return
        trial = cast(dict[str, Any], given)
        self._check_reason("trial", trial, _TRIAL)
        stacks: Any = trial.get("stacks")
        named = isinstance(stacks, list) and all(
            isinstance(s, str) and re.search(r"\w", s) for s in cast(list[Any], stacks)
        )
        if not (named and stacks):
            self._wrong("trial.stacks", "required: the names of the stacks, * allowed in them")
        elif len(self._into.problems) == before:
            self._into.trial = True
            self._into.trial_stacks = tuple(cast(list[str], stacks))

    def _check_reason(self, where: str, given: dict[str, Any], valid: set[str]) -> None:
        for key in given:
            if key not in valid:
                self._wrong(f"{where}.{key}", f"unknown key; valid keys: {_listed(valid)}")
        if not str(given.get("reason") or "").strip():
            self._wrong(f"{where}.reason", "required: say why, for who reads this next")
        self._check_end(f"{where}.expires", given.get("expires"))

    def _read_parameter(self, where: str, parameter: Parameter, given: Any) -> Any:
        """The value, or ``None`` if it has no effect."""
        before = len(self._into.problems)
        explained = isinstance(given, dict)
        value: Any = cast(dict[str, Any], given).get("value") if explained else given
        if problem := parameter.problem(value):
            self._wrong(where, problem)
        elif parameter.weakens(value) and not explained:
            self._wrong(
                where,
                f"{value!r} asks less than {parameter.default!r}: give a mapping with"
                f" {_listed(_WEAKENED)}",
            )
        if explained:
            self._check_reason(where, cast(dict[str, Any], given), _WEAKENED)
        return value if len(self._into.problems) == before else None

    def _read_parameters(self, given: Any) -> None:
        if not isinstance(given, dict):
            self._wrong("parameters", "must be a mapping from rule to its parameters")
            return
        known: dict[str, dict[str, Any]] = {}
        for name, values in cast(dict[str, Any], given).items():
            where = f"parameters.{name}"
            rule = self._rules.get(name)
            if rule is None:
                self._wrong(where, self._no_such_rule())
                continue
            if not isinstance(values, dict):
                self._wrong(where, f"must be a mapping with {_listed(rule.parameters)}")
                continue
            known[name] = {}
            for key, value in cast(dict[str, Any], values).items():
                parameter = rule.parameters.get(key)
                if parameter is None:
                    valid = _listed(rule.parameters) or "none: the rule has no parameters"
                    self._wrong(f"{where}.{key}", f"unknown parameter; valid: {valid}")
                    continue
                read = self._read_parameter(f"{where}.{key}", parameter, value)
                if read is not None:
                    known[name][key] = read
        self._into.parameters = known

    def _read_entry(self, where: str, given: Any, *, needs_resource: bool) -> None:
        if not isinstance(given, dict):
            self._wrong(where, f"must be a mapping with the keys {_listed(_ENTRY)}")
            return
        entry = cast(dict[str, Any], given)
        before = len(self._into.problems)
        self._check_reason(where, entry, _ENTRY)
        rule, resource = entry.get("rule"), entry.get("resource")
        if not isinstance(rule, str) or rule not in self._rules:
            self._wrong(f"{where}.rule", self._no_such_rule())
        elif rule == RULE_ID:
            self._wrong(f"{where}.rule", f"{RULE_ID} cannot be weakened")
        if needs_resource and not (isinstance(resource, str) and resource):
            self._wrong(f"{where}.resource", "required: a URN or type::name, * allowed in it")
        if not needs_resource and resource is not None:
            self._wrong(f"{where}.resource", "one resource is exempted under `exemptions`")
        if needs_resource and isinstance(resource, str) and not _names_one(resource):
            self._wrong(
                f"{where}.resource",
                f"{resource} is too wide: must be type::name or a URN, with module of the type and"
                " three characters of the name, or all of them, given",
            )
        stacks = entry.get("stacks") or []
        if not isinstance(stacks, list) or not all(isinstance(s, str) for s in stacks):
            self._wrong(f"{where}.stacks", "must be a list of stack names, * allowed in them")
        elif len(self._into.problems) == before:
            self._into.entries.append(
                Entry(str(rule), resource, tuple(stacks), f"{self._source}: {where}")
            )

    def _check_end(self, where: str, end: Any) -> None:
        if type(end) is not date:  # a time of day is a date to Python
            self._wrong(where, "required: the last day it holds, as YYYY-MM-DD")
        elif end < self._today:
            self._wrong(where, f"expired on {end}; fix the resource, or decide anew")
        elif end - self._today > LONGEST:
            latest = self._today + LONGEST
            self._wrong(where, f"{end} is more than a year away; at most {latest}")

    def _no_such_rule(self) -> str:
        return f"no such rule; valid: {_listed(self._rules)}"

    def _wrong(self, where: str, what: str) -> None:
        self._into.problems.append(f"{self._source}: {where}: {what}")


def _names_one(pattern: str) -> bool:
    """Whether a pattern says which type and which name it means."""
    *before, name = pattern.split("::")
    if not before:
        return False
    kind = before[-1].removeprefix("urn:").rpartition("$")[2].lstrip("*")
    wild = re.search(r"[*?\[]", name) is not None
    literal = re.split(r"\*|\?|\[[^\]]*\]", name)
    return bool(_KIND.match(kind)) and (
        any(len(part) >= 3 for part in literal) if wild else bool(name)
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
