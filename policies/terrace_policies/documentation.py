"""The rule book for people: the table of docs/policies.md, and one rule explained."""

from collections.abc import Iterator
from typing import Any

import yaml

from terrace_policies.book import rules
from terrace_policies.fixtures import Case, cases_of
from terrace_policies.model import Rule

_HEADER = (
    "| rule | severity | level | at admission | what it says | where it comes from |\n"
    "|---|---|---|---|---|---|\n"
)


def table() -> str:
    """All rules as a Markdown table."""
    return _HEADER + "".join(_row(rule) for rule in rules())


def parameter_table() -> str:
    """All parameters of rules as a Markdown table."""
    rows = [
        f"| `{rule.id}` | `{name}` | `{parameter.default!r}` | {parameter.meaning} |\n"
        for rule in rules()
        for name, parameter in rule.parameters.items()
    ]
    return "| rule | parameter | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def with_tables(page: str) -> str:
    """The text of docs/policies.md with both tables as they must be.

    Raises ``ValueError`` if the marks of a table are not there.
    """
    for name, text in (("rules", table()), ("parameters", parameter_table())):
        before, begin, rest = page.partition(f"<!-- {name}: made by `terrace policy table` -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if not (begin and end):
            raise ValueError(f"the marks of the table of {name} are missing")
        page = before + begin + text + end + after
    return page


def record(rule: Rule) -> dict[str, Any]:
    """A rule as plain data, for ``--json``."""
    return {
        "id": rule.id,
        "severity": rule.severity.value,
        "level": rule.level.value,
        "reads": "resource" if rule.resource is not None else "stack",
        "types": list(rule.types),
        "admission": rule.admission,
        "description": rule.description,
        "why": rule.why,
        "remediation": rule.remediation,
        "references": [
            {"framework": r.framework, "reference": r.reference} for r in rule.references
        ],
        "parameters": {
            name: {"type": p.kind.__name__, "default": p.default, "meaning": p.meaning}
            for name, p in rule.parameters.items()
        },
    }


def explanation(rule: Rule) -> str:
    """A rule with its reason, its references, what to do, and a good and a bad example."""
    parts = [
        f"{rule.id} ({rule.severity.value}, {rule.level.value})",
        rule.description + ".",
        f"Why: {rule.why}",
        f"To do: {rule.remediation}",
        "From: " + "; ".join(map(str, rule.references)) + ".",
    ]
    if rule.admission:
        parts.append("The API server enforces it too, as a ValidatingAdmissionPolicy.")
    for name, parameter in rule.parameters.items():
        parts.append(f"Parameter {name} (default {parameter.default!r}): {parameter.meaning}.")
    examples = cases_of(rule.id)
    for word, good in (("Good", True), ("Bad: the same, but", False)):
        chosen = next((case for case in examples if case.good is good), None)
        if chosen is not None:
            parts.append(f"{word}\n{_indented(''.join(_shown(chosen))).rstrip()}")
    return "\n\n".join(parts) + "\n"


def _row(rule: Rule) -> str:
    references = "; ".join(map(str, rule.references))
    # The API server is asked about namespaces only: objects of the cluster are not Terrace's alone.
    wide = {f"kubernetes:*:{kind}" for kind in ("ClusterRole", "ClusterRoleBinding")}
    kinds = [name.rpartition(":")[2] for name in rule.types if name not in wide]
    some = ", ".join(f"{kind}s only" for kind in kinds)
    admission = (some if wide & set(rule.types) else "yes") if rule.admission else ""
    cells = (f"`{rule.id}`", rule.severity.value, rule.level.value, admission, rule.description)
    return f"| {' | '.join(cells)} | {references} |\n"


def _shown(case: Case) -> Iterator[str]:
    """The resources that the case is about; of a bad one, what was changed in them."""
    names = {example.name for example in case.examples if example.shown}
    for example in case.examples:
        belongs = case.good and example.references() & names
        if not example.shown and not belongs:
            continue
        yield f"{example.type} {example.name}\n"
        if case.good:
            yield _indented(_yaml(example.properties)) if example.properties else ""
            continue
        for path, value in example.change.get("set", {}).items():
            yield _indented(_yaml({path: value}))
        for path in example.change.get("unset", []):
            yield _indented(f"{path}: absent\n")
        for name in example.change.get("without", []):
            yield _indented(f"without {name}\n")


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=100)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
