"""The app of port 8081: the route tables of the modules, authenticated, audited, documented."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import psycopg
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from terrace_gateway.admin import (
    alerts,
    caps,
    captures,
    governance,
    guardrails,
    keys,
    kill,
    ledger,
    models,
    prices,
    upstream,
)
from terrace_gateway.admin.admission import Admission, AdmissionMovedError, unchecked
from terrace_gateway.admin.authentication import AdminAuthenticator, AdminKeyAuthenticator, admit
from terrace_gateway.admin.openapi import openapi_document
from terrace_gateway.admin.pending import PENDING, pending_here
from terrace_gateway.admin.routing import (
    PREFIX,
    AdminCall,
    AdminRefusal,
    AdminRoute,
    json_answer,
)
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import NotDoneError
from terrace_gateway.edge.errors import (
    AUTHORITY_UNAVAILABLE,
    INTERNAL_ERROR,
    INVALID_API_KEY,
    INVALID_REQUEST,
    ROUTE_NOT_FOUND,
    ApiError,
)
from terrace_gateway.policy.feed import NoPolicyError
from terrace_gateway.runtime import Runtime

log = structlog.get_logger()

AWAY = "the database is away; try again"
UNKNOWN = (
    "the database was lost while it worked, and whether the change was made is not known: look"
    " before you send it again"
)
AGAIN = (
    "the database was lost while it worked, and whether the change was made is not known: send it"
    " again, which is the same as once"
)
_REPEATABLE = ("/kill", "/unkill", "/keys/{key_id}/revoke")
MAX_CALLS = 5
"""Of an endpoint whose caller's admission moved while it waited."""

Module = Callable[[Runtime], list[AdminRoute]]

MODULES: tuple[Module, ...] = (
    keys.routes,
    governance.routes,
    kill.routes,
    caps.routes,
    models.routes,
    prices.routes,
    ledger.routes,
    captures.routes,
    guardrails.routes,
    upstream.routes,
    alerts.routes,
)


def admin_routes(runtime: Runtime, modules: Sequence[Module] = MODULES) -> list[AdminRoute]:
    """Every route of ``modules``, and the one that documents them."""
    routes = [route for module in modules for route in module(runtime)]

    async def document(_: AdminCall) -> dict[str, Any]:
        return openapi_document(routes)

    routes.append(
        AdminRoute(
            "GET", "/openapi.json", document, "This document.", "viewer",
            answer="An OpenAPI 3.1 document.",
        )
    )  # fmt: skip
    return routes


def create_admin_app(runtime: Runtime, modules: Sequence[Module] = MODULES) -> Starlette:
    """The app for port 8081."""
    authenticators: tuple[AdminAuthenticator, ...] = (
        AdminKeyAuthenticator(runtime.secrets.admin_key),
        *runtime.admin_authenticators,
    )
    return Starlette(
        routes=[
            Route(PREFIX + route.path, partial(_serve, runtime, authenticators, route),
                  methods=[route.method])
            for route in admin_routes(runtime, modules)
        ],
        exception_handlers={HTTPException: _no_route},
    )  # fmt: skip


async def _serve(
    runtime: Runtime,
    authenticators: tuple[AdminAuthenticator, ...],
    route: AdminRoute,
    request: Request,
) -> Response:
    """Authenticate, call, and turn every failure into an answer without internals."""
    policy = runtime.policy
    admitted = partial(admit, authenticators, dict(request.headers), route.role)
    try:
        _check_one_credential(request)
        admission = Admission(await admitted(), admitted=admitted, refresh=policy.refresh)
        call = AdminCall(request, admission=admission, max_body_bytes=route.max_body_bytes)
        async with runtime.database.reading() if route.method == "GET" else nullcontext():
            answer = await _answer(route, call)
    except ApiError as error:
        return _error(error)
    except AdminRefusal as refusal:
        return refusal.answer()
    except AuthorityUnavailableError as error:
        return _error(ApiError(AUTHORITY_UNAVAILABLE, _why_not_now(error, route)))
    except psycopg.DataError:  # a text with NUL, say; nothing was changed
        return _error(ApiError(INVALID_REQUEST, "a value cannot be stored"))
    except Exception:
        log.exception("defect")
        return _error(ApiError(INTERNAL_ERROR, "an error of ours; the log has it"))
    if route.changes_policy and not isinstance(answer, Response):
        why = await pending_here(policy)
        answer = answer if why is None else {**answer, PENDING: why}
    return answer if isinstance(answer, Response) else json_answer(answer, route.status)


async def _answer(route: AdminRoute, call: AdminCall) -> dict[str, Any] | Response:
    for _ in range(MAX_CALLS):
        try:
            return await route.endpoint(call)
        except AdmissionMovedError:
            await call.admission.renew()
    raise unchecked(1)


def _why_not_now(error: AuthorityUnavailableError, route: AdminRoute) -> str:
    if isinstance(error, NoPolicyError):
        return f"there is no policy to go by here: {error}"
    if isinstance(error, NotDoneError):
        return f"{error}{'; nothing was changed' if route.changes_policy else ''}: try again"
    if error.ambiguous and route.role == "admin":
        return AGAIN if route.path in _REPEATABLE else UNKNOWN
    return AWAY


def _check_one_credential(request: Request) -> None:
    if len(set(request.headers.getlist("authorization"))) > 1:
        raise ApiError(INVALID_API_KEY, "authorization came more than once; send one")


def _error(error: ApiError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), status_code=error.status, headers=headers)


async def _no_route(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = _error(ApiError(ROUTE_NOT_FOUND, "there is no such route here"))
    answer.status_code = 404 if status == 405 else status
    return answer
