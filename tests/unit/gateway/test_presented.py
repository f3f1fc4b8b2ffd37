"""The credential of a request: one, in whichever header; two that differ are refused."""

import pytest

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.edge.presented import check_host, presented_token

Pairs = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("pairs", "token"),
    [
        ([], None),
        ([("authorization", "Bearer a")], "a"),
        ([("authorization", "bearer  a ")], "a"),
        ([("x-api-key", "a")], "a"),
        ([("api-key", " a ")], "a"),
        ([("x-api-key", "")], None),
        ([("authorization", "Bearer a"), ("x-api-key", "a"), ("api-key", "a")], "a"),
        ([("authorization", "Bearer a"), ("authorization", "Bearer a")], "a"),
        ([("authorization", "AWS4-HMAC-SHA256 Credential=x"), ("x-api-key", "a")], "a"),
        ([("authorization", "Basic eDp5")], None),
        ([("authorization", "Bearer a"), ("x-api-key", "")], "a"),
        ([("proxy-authorization", "Bearer b"), ("x-api-key", "a")], "a"),
    ],
)
def test_one_credential_is_found_in_any_header(pairs: Pairs, token: str | None) -> None:
    assert presented_token(pairs) == token
    assert presented_token(pairs[::-1]) == token


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([("authorization", "Bearer a"), ("authorization", "Bearer b")], ["authorization"]),
        ([("authorization", "Bearer a"), ("authorization", "Basic eDp5")], ["authorization"]),
        ([("x-api-key", "a"), ("x-api-key", "b")], ["x-api-key"]),
        ([("x-api-key", ""), ("x-api-key", "b")], ["x-api-key"]),
        ([("authorization", "Bearer a"), ("x-api-key", "b")], ["authorization", "x-api-key"]),
        ([("x-api-key", "a"), ("api-key", "b")], ["x-api-key", "api-key"]),
        (
            [("authorization", "Bearer a"), ("x-api-key", "a"), ("api-key", "b")],
            ["authorization", "x-api-key", "api-key"],
        ),
    ],
)
def test_two_credentials_are_refused_by_the_names_of_their_headers(
    pairs: Pairs, named: list[str]
) -> None:
    for order in (pairs, pairs[::-1]):
        with pytest.raises(ApiError) as caught:
            presented_token(order)
        assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
        assert all(name in caught.value.message for name in named)
        assert "Bearer" not in caught.value.message


def test_more_than_one_host_is_refused() -> None:
    check_host([("host", "a")])
    for second in ("a", "b", ""):
        with pytest.raises(ApiError) as caught:
            check_host([("host", "a"), ("host", second)])
        assert caught.value.status == 400
