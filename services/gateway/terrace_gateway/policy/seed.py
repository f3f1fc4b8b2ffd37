"""The governance file of the deployment: applied at start if its text was never seen before."""

import structlog

from terrace_common.governance import GovernanceError
from terrace_gateway.policy.texts import digest_of
from terrace_gateway.policy.versions import BlockedError, GovernanceVersions

log = structlog.get_logger()

ACTOR = "deployment"
NOT_APPLIED = "governance_file_not_applied"
"""In the log, with the reason."""


class DeploymentFile:
    """Applies a file once per text, whichever replica comes first.

    A text that was in force before is not applied again: a pod that restarts with an old file does
    not undo what came after it. A file whose plan has blocking findings is not applied either;
    ``problem`` says so, and the last version stays in force.
    """

    def __init__(self, versions: GovernanceVersions, text: str) -> None:
        self._versions = versions
        self._text = text
        self.problem: str | None = None

    async def seed(self) -> None:
        """Apply the file if it is new. Raises ``AuthorityUnavailableError``."""
        digest = digest_of(self._text)
        if await self._versions.is_known(digest):
            self.problem = None
            return
        try:
            applied = await self._versions.apply(
                self._text, actor=ACTOR, reason="the file of the deployment", check_base=False,
                source="deployment", only_new=True,
            )  # fmt: skip
        except (BlockedError, GovernanceError) as error:
            self.problem = f"the governance file of this deployment is not in force: {error}"
            log.error(NOT_APPLIED, error=str(error))  # noqa: TRY400
            return
        self.problem = None
        if not applied.unchanged:
            log.info("governance_file_applied", version=applied.version)
