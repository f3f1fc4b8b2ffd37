"""Attacks on the admin API: values that the database cannot hold, tokens of every shape."""

import json
from typing import Any

import pytest
from gateway_rig.guard import ADMIN_KEY, InProcessGuard


async def raw(guard: InProcessGuard, method: str, path: str, **kwargs: Any) -> Any:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return await guard.http.request(
        method, f"{guard.admin_url}/admin/v1{path}", headers=headers, **kwargs
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/keys", {"team": "t", "name": "a\0b"}),
        ("POST", "/keys", '{"team": "t", "name": "\\ud800"}'),
        ("POST", "/keys", {"team": "t\n"}),
        ("POST", "/keys", {"team": "t", "expires_at": "9999-12-31T23:59:59-14:00"}),
        ("POST", "/keys", {"team": "t", "expires_at": "0001-01-01T00:00:00+14:00"}),
        ("POST", "/keys", '{"team": "t", "budget_micro_usd": 1e999}'),
        ("POST", "/keys", '{"team": "t", "budget_micro_usd": true}'),
        ("GET", "/keys?team=%00", None),
        ("GET", "/ledger?key_id=%00", None),
        ("GET", "/ledger?after=" + "0" * 20 + "9" * 30, None),
        ("GET", "/ledger?after=" + "9" * 5000, None),
        ("POST", "/keys/x/revoke", {"reason": "\0"}),
        ("POST", "/keys/%00/revoke", {}),
    ],
)
async def test_odd_values_are_refused_in_words(
    guard: InProcessGuard, method: str, path: str, body: Any
) -> None:
    new = await guard.new_key()
    path = path.replace("/keys/x/", f"/keys/{new['key_id']}/")
    content = body if isinstance(body, str) else json.dumps(body)
    response = await raw(guard, method, path, content=content)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["code"]
    assert len((await guard.admin("GET", "/keys"))["keys"]) == 1  # nothing is poisoned


@pytest.mark.parametrize(
    "value",
    [b"Bearer", b"", b"Bearer \xff\xfe", "Bearer ä".encode(), b"bearer tadm-",
     ADMIN_KEY.encode(), b"Bearer " + b"a" * 50_000, f"Bearer {ADMIN_KEY}x".encode()],
)  # fmt: skip
async def test_other_tokens_are_refused(guard: InProcessGuard, value: bytes) -> None:
    response = await guard.http.get(
        f"{guard.admin_url}/admin/v1/keys", headers=[(b"authorization", value)]
    )
    assert response.status_code == 401
    public = await guard.http.get(
        f"{guard.public_url}/admin/v1/keys", headers={"authorization": f"Bearer {ADMIN_KEY}"}
    )
    assert public.status_code == 404
