"""Reading a captured call: for auditors, and each reading is recorded before it is answered."""

from typing import Any

from starlette.responses import Response

from terrace_gateway.admin.audit import record
from terrace_gateway.admin.routing import AdminCall, AdminRoute, Query, json_answer
from terrace_gateway.capture.key_wrapping import KeyWrappingError
from terrace_gateway.edge.errors import INTERNAL_ERROR, MODEL_NOT_FOUND, ApiError
from terrace_gateway.runtime import Runtime

MAX_REASON = 512


def routes(runtime: Runtime) -> list[AdminRoute]:
    """``GET /admin/v1/captures/{request_id}``."""

    async def read(call: AdminCall) -> dict[str, Any] | Response:
        store = runtime.capture.store
        if store is None:
            raise ApiError(MODEL_NOT_FOUND, "this guard has no key for captures")
        request_id = call.path["request_id"]
        async with runtime.database.connection() as connection, connection.transaction():
            try:
                found = await store.read(connection, request_id)
            except KeyWrappingError as error:
                raise ApiError(INTERNAL_ERROR, f"the capture cannot be opened: {error}") from None
            if found is None:
                raise ApiError(
                    MODEL_NOT_FOUND, "there is no capture of this request", param="request_id"
                )
            await record(
                connection,
                actor=call.actor,
                action="capture.read",
                subject=request_id,
                reason=(call.text("reason") or "")[:MAX_REASON] or None,
                detail={"key_id": found["key_id"], "team": found["team"]},
            )
        answer = json_answer(found)
        answer.headers["cache-control"] = "no-store"
        return answer

    return [
        AdminRoute(
            "GET", "/captures/{request_id}", read,
            "A captured prompt and answer, redacted. The reading is recorded.", "auditor",
            answer="The capture: caller, times, prompt and answer texts.",
            query=(Query("reason", "Why it is read, for the audit record."),),
        )
    ]  # fmt: skip
