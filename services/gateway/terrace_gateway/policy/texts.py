"""Governance texts, compiled once: a plan, its apply and the reload after it are of one text."""

import hashlib

from terrace_common.governance import GovernanceError, load_governance
from terrace_common.governance.compile import CompiledGovernance, compile_governance
from terrace_common.yaml_lines import read_lined_yaml
from terrace_gateway.guardrails.content_rules import content_problems

SOURCE = "governance.yaml"
KEPT = 4


class Texts:
    """The last few texts, compiled or refused. May be used from several threads."""

    def __init__(self) -> None:
        self._known: dict[str, CompiledGovernance | GovernanceError] = {}

    def compile(self, text: str) -> CompiledGovernance:
        """The text, ready for use. Takes seconds for 10,000 declared keys, unless it is known.

        Raises ``GovernanceError``, also for content patterns that RE2 refuses: the spec's own
        validation is pure and does not have it.
        """
        digest = digest_of(text)
        known = self._known.get(digest)
        if known is None:
            try:
                known = _compiled(text)
            except GovernanceError as error:  # what is refused is asked for again at every poll
                known = error
            kept = list(self._known.items())[-(KEPT - 1) :]
            self._known = {**dict(kept), digest: known}
        if isinstance(known, GovernanceError):
            raise GovernanceError(known.source, known.problems)
        return known

    def known(self, digest: str) -> CompiledGovernance | None:
        """The text with this digest, if it is one of the last few and was not refused."""
        known = self._known.get(digest)
        return known if isinstance(known, CompiledGovernance) else None

    def was_in_force(self, text: str) -> CompiledGovernance:
        """Of a text that was in force: what RE2 refuses in it must not keep the next one out.

        Raises ``GovernanceError``.
        """
        known = self._known.get(digest_of(text))
        if isinstance(known, CompiledGovernance):
            return known
        return compile_governance(load_governance(text, SOURCE))


def _compiled(text: str) -> CompiledGovernance:
    spec = load_governance(text, SOURCE)
    problems = list(content_problems(spec))
    if problems:
        document = read_lined_yaml(text)
        raise GovernanceError(SOURCE, [(document.line_of(path), what) for path, what in problems])
    return compile_governance(spec)


def digest_of(text: str) -> str:
    """SHA-256 of a governance text, hex."""
    return hashlib.sha256(text.encode()).hexdigest()
