"""Admin routes of the governance: plan, apply, roll back, and what is in force."""

from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict, Field

from terrace_common.governance import GovernanceError
from terrace_common.governance.plan import CODES
from terrace_gateway.admin.routing import AdminCall, AdminRefusal, AdminRoute, Query
from terrace_gateway.edge.errors import MODEL_NOT_FOUND, ApiError
from terrace_gateway.policy.planning import MODEL_NOT_DEPLOYED, TooManyWaitingError
from terrace_gateway.policy.seed import OVERTAKEN, KnownVersion
from terrace_gateway.policy.versions import (
    Applied,
    BlockedError,
    UnknownVersionError,
    VersionConflictError,
)
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

MAX_TEXT = 8 * 1024 * 1024
MAX_PAGE = 200


class Spec(BaseModel):
    """A governance spec to plan."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=MAX_TEXT)


class Application(BaseModel):
    """A spec to apply. ``base_version`` is the one that the plan named."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=MAX_TEXT)
    base_version: int | None = Field(strict=True, ge=1)
    reason: str = Field(min_length=1, max_length=512)
    allow: list[str] = Field(default_factory=list, max_length=64)


class Rollback(BaseModel):
    """A version whose text is applied again, as a new version."""

    model_config = ConfigDict(extra="forbid")

    version: int = Field(strict=True, ge=1)
    base_version: int | None = Field(default=None, strict=True, ge=1)
    reason: str = Field(min_length=1, max_length=512)
    allow: list[str] = Field(default_factory=list, max_length=64)


class GovernanceApi:
    """Endpoints of the governance."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._versions = runtime.versions

    async def plan(self, call: AdminCall) -> dict[str, Any]:
        """What a spec would change. Changes nothing."""
        body = await call.read(Spec)
        try:
            planned = await self._versions.plan(
                body.text, actor=call.actor, may_apply=call.may_change
            )
        except GovernanceError as error:
            raise _invalid(error) from None
        except TooManyWaitingError as error:
            raise _busy(error) from None
        return {
            "base_version": planned.base_version,
            "digest": planned.digest,
            "same": planned.same,
            **planned.plan.to_json(),
        }

    async def apply(self, call: AdminCall) -> dict[str, Any]:
        """Put a spec in force, if nobody else did meanwhile."""
        body = await call.read(Application)
        return await self._applied(
            self._versions.apply(
                body.text, actor=call.actor, reason=body.reason, allow=_codes(body.allow),
                base_version=body.base_version, admission=call.admission,
            )
        )  # fmt: skip

    async def rollback(self, call: AdminCall) -> dict[str, Any]:
        """Put the text of an earlier version in force, as a new version."""
        body = await call.read(Rollback)
        return await self._applied(
            self._versions.rollback(
                body.version, actor=call.actor, reason=body.reason, allow=_codes(body.allow),
                base_version=body.base_version, check_base=body.base_version is not None,
                admission=call.admission,
            )
        )  # fmt: skip

    async def show(self, call: AdminCall) -> dict[str, Any]:
        """One version with its text: the one in force, unless another is named. ``problem``: why
        this replica has not all of the newest in force, or why the newest is not the deployment's
        file, and what to do. ``note``: that file was in force before, and the newest has another
        text."""
        number = call.number("version", default=0, low=0, high=2**62)
        row = await self._versions.version(number or None)
        newest = row
        if number:
            newest = next(iter(await self._versions.versions(before=None, limit=1)), None)
        trouble = self._runtime.deployment.trouble(
            None if newest is None else KnownVersion(newest["version"], newest["digest"])
        )
        problems, note = [self._runtime.policy.problem], None
        if trouble is not None and trouble.line == OVERTAKEN:
            note = trouble.words
        elif trouble is not None:
            problems.append(trouble.words)
        problem = "; ".join(one for one in problems if one is not None) or None
        if row is None:
            none = "there is no such version"
            said = f"{none}; {problem}" if problem and not number else none
            raise ApiError(MODEL_NOT_FOUND, said, param="version")
        return {**row, "problem": problem, "note": note}

    async def versions(self, call: AdminCall) -> dict[str, Any]:
        """A page of versions, newest first."""
        limit = call.number("limit", default=50, low=1, high=MAX_PAGE)
        before = call.number("before", default=0, low=0, high=2**62)
        rows = await self._versions.versions(before=before or None, limit=limit + 1)
        page = rows[:limit]
        return {"versions": page, "next": page[-1]["version"] if len(rows) > limit else None}

    async def _applied(self, work: Any) -> dict[str, Any]:
        try:
            applied: Applied = await work
        except GovernanceError as error:
            raise _invalid(error) from None
        except TooManyWaitingError as error:
            raise _busy(error) from None
        except VersionConflictError as error:
            raise AdminRefusal(
                409, "version_conflict", str(error), extra={"in_force": error.in_force}
            ) from None
        except BlockedError as error:
            raise AdminRefusal(
                409, "governance_blocked", str(error), extra=error.plan.to_json()
            ) from None
        except UnknownVersionError:
            raise ApiError(MODEL_NOT_FOUND, "there is no such version", param="version") from None
        if not applied.unchanged:
            log.info("governance_applied", version=applied.version)
        return {
            "version": applied.version,
            "digest": applied.digest,
            "applied_at": applied.applied_at,
            "unchanged": applied.unchanged,
            **applied.plan.to_json(),
        }


def _codes(allow: list[str]) -> list[str]:
    valid = sorted({*CODES, MODEL_NOT_DEPLOYED})
    for code in allow:
        if code not in valid:
            raise invalid(f"unknown code {code!r}; valid: {', '.join(valid)}", "allow")
    return allow


def _invalid(error: GovernanceError) -> AdminRefusal:
    problems = [{"line": line, "message": what} for line, what in error.problems]
    return AdminRefusal(400, "governance_invalid", str(error), extra={"problems": problems})


def _busy(error: TooManyWaitingError) -> AdminRefusal:
    return AdminRefusal(503, "too_many_waiting", f"{error}; nothing was changed")


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of the governance."""
    api = GovernanceApi(runtime)
    plan = "The diff `changes`, its `findings`, and the codes that are `blocking`."
    applied = "The version in force, and the plan that led to it."
    return [
        AdminRoute("POST", "/governance/plan", api.plan, "What a spec would change.", "viewer",
                   body=Spec, answer=plan, max_body_bytes=2 * MAX_TEXT),
        AdminRoute("POST", "/governance/apply", api.apply, "Put a spec in force, atomically.",
                   "admin", body=Application, answer=applied, max_body_bytes=2 * MAX_TEXT,
                   changes_policy=True),
        AdminRoute("POST", "/governance/rollback", api.rollback,
                   "Put an earlier version's text in force.", "admin", body=Rollback,
                   answer=applied, changes_policy=True),
        AdminRoute("GET", "/governance", api.show, "The version in force, with its text.",
                   "viewer", query=(Query("version", "Another version.", "integer"),),
                   answer="The version, this replica's `problem` with the newest, and a `note`."),
        AdminRoute("GET", "/governance/versions", api.versions, "Versions, newest first.",
                   "viewer", answer="A page: `versions` and `next`.",
                   query=(Query("before", "Versions older than this.", "integer"),
                          Query("limit", f"At most so many, up to {MAX_PAGE}.", "integer"))),
    ]  # fmt: skip
