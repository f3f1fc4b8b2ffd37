"""The rule about the configuration itself; its violations come from reading and using it."""

from terrace_policies.configuration import RULE_ID
from terrace_policies.model import Reference, Rule, Severity

RULES = (
    Rule(
        id=RULE_ID,
        description="Every weakening of a rule has a reason, an end and a use",
        why="An exemption that nobody remembers is a hole that nobody sees.",
        remediation="Correct or remove the entry in terrace-policies.yaml (docs/policies.md).",
        severity=Severity.HIGH,
        references=(Reference("NIST SP 800-53 r5", "CM-6 (deviations are documented)"),),
    ),
)
