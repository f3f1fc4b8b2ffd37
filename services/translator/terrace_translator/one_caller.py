"""The translator has one caller, the guard: its key is compared, and nothing is looked up.

LiteLLM's own authentication looks for teams, budgets and spend of a key in caches and in a database
that is not there. Whoever does not show the master key gets LiteLLM's own, and so its refusal.
"""

import importlib
import secrets
from collections.abc import Callable
from typing import Any

# Parameters of LiteLLM's authentication, each named as the header object that it is read from.
_HEADERS = (
    "api_key_header", "azure_api_key_header", "anthropic_api_key_header",
    "google_ai_studio_api_key_header", "azure_apim_header", "custom_litellm_key_header",
)  # fmt: skip


def admit(app: Any, master_key: str) -> None:
    """Put it before every route of LiteLLM's ``app`` that asks for a key."""
    module = importlib.import_module("litellm.proxy.auth.user_api_key_auth")
    app.dependency_overrides[module.user_api_key_auth] = _authentication(module, master_key)


def _authentication(module: Any, master_key: str) -> Callable[..., Any]:
    types = importlib.import_module("litellm.proxy._types")
    alias = importlib.import_module("litellm.constants").LITELLM_PROXY_MASTER_KEY_ALIAS
    route_of = importlib.import_module("litellm.proxy.auth.auth_utils").get_request_route
    admin = importlib.import_module("litellm.proxy.proxy_server").litellm_proxy_admin_name
    headers = {name: getattr(module, name).model.name for name in _HEADERS}
    expected = f"Bearer {master_key}".encode()

    async def authenticate(request: Any) -> Any:
        shown = request.headers.get("authorization", "")
        if not secrets.compare_digest(shown.encode("latin-1", "replace"), expected):
            found = {name: request.headers.get(header) for name, header in headers.items()}
            found["api_key"] = found.pop("api_key_header")
            return await module.user_api_key_auth(request=request, **found)
        return types.UserAPIKeyAuth(
            api_key=alias,
            user_role=types.LitellmUserRoles.PROXY_ADMIN,
            user_id=admin,
            request_route=route_of(request=request),
        )

    # FastAPI reads it: with any other type it would look for a parameter of the query.
    authenticate.__annotations__["request"] = importlib.import_module("fastapi").Request
    return authenticate
