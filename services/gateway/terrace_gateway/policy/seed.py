"""The governance file of the deployment: applied at start if its text was never seen before."""

from typing import NamedTuple, Protocol

import structlog

from terrace_common.governance import GovernanceError
from terrace_gateway.policy.texts import digest_of
from terrace_gateway.policy.versions import BlockedError, GovernanceVersions

log = structlog.get_logger()

ACTOR = "deployment"
NOT_APPLIED = "governance_file_not_applied"
"""In the log, with the reason."""
OVERTAKEN = "governance_file_not_in_force"
"""In the log: the file was in force before, and another text is."""


class Version(Protocol):
    """Of the governance; a snapshot is of one."""

    @property
    def version(self) -> int: ...

    @property
    def digest(self) -> str: ...


class KnownVersion(NamedTuple):
    """One that the database has."""

    version: int
    digest: str


class FileTrouble(NamedTuple):
    """Why the file is not in force: the line of the log, and words."""

    line: str
    words: str


class DeploymentFile:
    """Applies a file once per text, whichever replica comes first.

    A text that was in force before is not applied again: a pod that restarts with an old file does
    not undo what came after it. A file whose plan has blocking findings is not applied either;
    ``problem`` says so, and the last version stays in force.
    """

    def __init__(self, versions: GovernanceVersions, text: str) -> None:
        self._versions = versions
        self._text = text
        self._digest = digest_of(text)
        self._seeded = False
        self.problem: str | None = None
        """Why the file was not applied."""

    async def seed(self) -> None:
        """Apply the file if it is new. Raises ``AuthorityUnavailableError``."""
        if not await self._versions.is_known(self._digest):
            try:
                applied = await self._versions.apply(
                    self._text, actor=ACTOR, reason="the file of the deployment", check_base=False,
                    source="deployment", only_new=True,
                )  # fmt: skip
            except (BlockedError, GovernanceError) as error:
                words = _what_to_do(error)
                self.problem = f"the governance file of this deployment is not in force: {words}"
                log.error(NOT_APPLIED, error=words)  # noqa: TRY400
                return
            if not applied.unchanged:
                log.info("governance_file_applied", version=applied.version)
        self.problem = None
        self._seeded = True
        newest = await self._versions.version()
        if newest is not None and newest["digest"] != self._digest:
            log.warning(OVERTAKEN, version=newest["version"], actor=newest["actor"])

    def trouble(self, in_force: Version | None) -> FileTrouble | None:
        """Why ``in_force`` is not this file; ``None``: it is, or that is not known yet."""
        if in_force is not None and in_force.digest == self._digest:
            return None
        if self.problem is not None:
            return FileTrouble(NOT_APPLIED, self.problem)
        if in_force is None or not self._seeded:
            return None
        return FileTrouble(
            OVERTAKEN,
            "the governance file of this deployment was in force before and is not now: version"
            f" {in_force.version} has another text, and a file is applied by itself only once."
            " `terrace governance apply FILE --reason WHY` puts it in force again",
        )


def _what_to_do(error: BlockedError | GovernanceError) -> str:
    if isinstance(error, GovernanceError):
        return str(error)
    allow = " ".join(f"--allow {code}" for code in error.codes)
    return (
        f"{error}. `terrace governance plan FILE` says what they are, and"
        f" `terrace governance apply FILE --reason WHY {allow}` puts it in force in spite of them"
    )
