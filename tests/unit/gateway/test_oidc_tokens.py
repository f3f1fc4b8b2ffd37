"""Tokens: what is taken and what is not, and what a moody identity provider does to callers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from terrace_common.governance.authentication import Authentication, OidcIssuer
from terrace_gateway.authentication.jwks import (
    MISS_SECONDS,
    REFRESH_SECONDS,
    STALE_SECONDS,
    read_keys,
)
from terrace_gateway.authentication.tokens import TokenVerifier, claim, claim_texts
from terrace_gateway.edge.errors import ApiError

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.fake_idp import FakeIdp, SetClock, encode, forged

pytestmark = pytest.mark.unit

Verifier = Callable[..., TokenVerifier]


@pytest.fixture(scope="module")
def keys() -> FakeIdp:
    """Keys are slow to make, so they are shared."""
    idp = FakeIdp()
    for key_id, algorithm in (("k1", "RS256"), ("k2", "RS256"), ("es", "ES256"), ("ed", "EdDSA")):
        idp.rotate(key_id, algorithm)
    return idp


@pytest.fixture
async def idp(keys: FakeIdp) -> AsyncIterator[FakeIdp]:
    fresh = FakeIdp()
    fresh.private, fresh.algorithms = dict(keys.private), dict(keys.algorithms)
    fresh.published = ["k1", "es", "ed"]
    async with fresh.running():
        yield fresh


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def make(idp: FakeIdp, clock: SetClock) -> AsyncIterator[Verifier]:
    made: list[TokenVerifier] = []

    def build(**changes: Any) -> TokenVerifier:
        fields = {"name": "corp", "kind": "oidc", "issuer": idp.issuer, "audiences": ("terrace",)}
        issuer = OidcIssuer(**{**fields, **changes})
        made.append(TokenVerifier(Authentication(issuers=(issuer,)), clock))
        return made[-1]

    yield build
    for verifier in made:
        await verifier.close()


async def status_of(verifier: TokenVerifier, token: str) -> int:
    """200 for a good one."""
    try:
        found = await verifier.verify(token)
    except ApiError as error:
        return 0 if token in error.message else error.status
    return 0 if found is None else 200


@pytest.mark.parametrize("key_id", ["k1", "es", "ed"])
async def test_a_good_token_of_each_algorithm(idp: FakeIdp, make: Verifier, key_id: str) -> None:
    token = await make().verify(idp.sign(key_id, groups=["a"]))
    assert token is not None
    assert (token.subject, token.claims["groups"]) == ("jo", ["a"])
    assert (idp.fetches, idp.discoveries) == (1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None}, {"exp": 1}, {"exp": "soon"}, {"exp": True}, {"exp": 1e400}, {"exp": 10**400},
        {"exp": 1e18}, {"nbf": 2**33}, {"nbf": "x"}, {"iat": 2**33}, {"aud": "other"},
        {"aud": None}, {"aud": []}, {"aud": ["a", 1]}, {"aud": {"terrace": 1}}, {"sub": None},
        {"sub": ""}, {"sub": 7}, {"sub": "x" * 256}, {"iss": "https://evil.example"},
        {"iss": None}, {"iss": ["a"]},
    ],
    ids=str,
)  # fmt: skip
async def test_wrong_claims_are_401(idp: FakeIdp, make: Verifier, changes: dict[str, Any]) -> None:
    claims = idp.claims(**changes)
    key = idp.private["es"]
    head = {"alg": "ES256", "typ": "JWT", "kid": "es"}
    body = f"{encode(head)}.{encode(claims)}"
    signature = jwt.get_algorithm_by_name("ES256").sign(body.encode(), key)
    assert await status_of(make(), f"{body}.{encode(signature)}") == 401


async def test_times_allow_for_the_declared_skew_by_the_database_s_clock(
    idp: FakeIdp, make: Verifier, clock: SetClock
) -> None:
    verifier, token = make(clock_skew_seconds=30), idp.sign("k1")
    clock.seconds += 600 + 29
    assert await status_of(verifier, token) == 200
    clock.seconds += 1
    assert await status_of(verifier, token) == 401


async def test_a_token_that_lives_too_long_is_refused(idp: FakeIdp, make: Verifier) -> None:
    verifier = make(max_age_seconds=300)
    assert await status_of(verifier, idp.sign("k1")) == 401
    assert await status_of(verifier, idp.sign("k1", iat=None)) == 401
    exp = idp.claims()["iat"] + 300
    assert await status_of(verifier, idp.sign("k1", exp=exp)) == 200


async def test_forgeries_are_401(idp: FakeIdp, make: Verifier) -> None:
    verifier = make()
    claims = idp.claims(sub="ceo")
    good = idp.sign("k1").split(".")
    forgeries = [
        forged({"alg": "none", "kid": "k1"}, claims),
        forged({"alg": "None", "kid": "k1"}, claims),
        # The public key as an HMAC secret.
        forged({"alg": "HS256", "kid": "k1"}, claims, idp.public_pem("k1")),
        forged({"alg": "RS256", "kid": "k1"}, claims, idp.public_pem("k1")),
        # A key that the token brings along.
        forged({"alg": "ES256", "kid": "zz", "jwk": idp.jwk("es")}, claims, b"x"),
        forged({"alg": "RS256", "kid": "k1", "jku": "https://evil.example/keys"}, claims, b"x"),
        forged({"alg": "RS256", "kid": "k1", "crit": ["exp"]}, claims, b"x"),
        forged({"alg": "RS256", "kid": ["k1"]}, claims, b"x"),
        forged({"alg": ["RS256"], "kid": "k1"}, claims, b"x"),
        # Another key's id, another algorithm's key.
        idp.sign("k1", headers={"kid": "es"}),
        idp.sign("es", headers={"kid": "k1"}),
        # One token's signature on another's claims.
        f"{good[0]}.{encode(claims)}.{good[2]}",
        f"{good[0]}.{good[1]}.",
        f"{good[0]}.{encode(b'{')}.{good[2]}",
        f"{good[0]}.{encode(b'[' * 5000)}.{good[2]}",
        idp.sign("k1", note="x" * 20_000),
    ]
    for token in forgeries:
        assert await status_of(verifier, token) == 401, token[:60]


async def test_an_algorithm_that_is_not_declared_is_refused(idp: FakeIdp, make: Verifier) -> None:
    assert await status_of(make(algorithms=("RS256",)), idp.sign("es")) == 401


@pytest.mark.parametrize(
    "text", ["tk-" + "a" * 43, "sk-x", "", "a.b", "a.b.c.d", "....", "a b.c.d"]
)
async def test_what_is_no_token_is_left_to_others(make: Verifier, text: str) -> None:
    assert await make().verify(text) is None


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="eyJhbGc.i-_OI9", max_size=60))
def test_no_text_is_a_defect(text: str) -> None:
    issuer = OidcIssuer(
        name="a", kind="oidc", issuer="https://a.example", audiences=("t",), jwks_url=None
    )
    verifier = TokenVerifier(Authentication(issuers=(issuer,)), SetClock())
    try:
        status = 0 if asyncio.run(verifier.verify(text)) is None else 200
    except ApiError as error:
        status = error.status
    assert status in (0, 401)


async def test_a_rotated_key_is_found_and_a_withdrawn_one_is_not(
    idp: FakeIdp, make: Verifier, clock: SetClock
) -> None:
    verifier = make()
    assert await status_of(verifier, idp.sign("k1")) == 200
    clock.seconds += MISS_SECONDS
    idp.published = ["k2"]
    assert await status_of(verifier, idp.sign("k2")) == 200
    clock.seconds += 0.1
    assert await status_of(verifier, idp.sign("k1")) == 503  # asked for just now: not known yet
    clock.seconds += MISS_SECONDS
    assert await status_of(verifier, idp.sign("k1")) == 401


async def test_keys_are_fetched_anew_beside_the_calls(
    idp: FakeIdp, make: Verifier, clock: SetClock
) -> None:
    verifier = make()
    token = idp.sign("k1", exp=2**33)
    assert await status_of(verifier, token) == 200
    idp.published = ["k2"]
    clock.seconds += REFRESH_SECONDS + 1
    assert await status_of(verifier, token) == 200
    async with asyncio.timeout(60):
        while await status_of(verifier, token) == 200:  # until the new keys have come
            await asyncio.sleep(0.01)
    assert idp.fetches == 2
    clock.seconds += MISS_SECONDS
    assert await status_of(verifier, token) == 401


async def test_unknown_key_ids_make_few_fetches(
    idp: FakeIdp, make: Verifier, clock: SetClock
) -> None:
    verifier = make()
    statuses = set()
    for number in range(200):
        statuses.add(await status_of(verifier, idp.sign("es", headers={"kid": f"x{number}"})))
        clock.seconds += 0.05
    assert statuses == {401, 503}
    assert idp.fetches <= 1 + 200 * 0.05 / MISS_SECONDS + 1
    assert await status_of(verifier, idp.sign("k1")) == 200


async def test_many_callers_share_a_fetch(idp: FakeIdp, make: Verifier) -> None:
    verifier = make()
    idp.hang = True
    tokens = [idp.sign("es", sub=f"u{number}") for number in range(50)]
    found = await asyncio.gather(*(status_of(verifier, token) for token in tokens))
    assert (set(found), idp.fetches) == ({200}, 1)


@pytest.mark.parametrize(
    "trouble",
    ["down", "status", "garbage", "empty", "huge", "not a set", "wrong issuer", "redirect"],
)
async def test_keys_that_cannot_be_had_are_503_never_401(
    idp: FakeIdp, make: Verifier, clock: SetClock, trouble: str
) -> None:
    idp.status = {"status": 500, "redirect": 302}.get(trouble, 200)
    idp.body = {
        "garbage": b"<html>", "empty": b'{"keys": []}', "huge": b" " * 600_000, "not a set": b"[]",
    }.get(trouble)  # fmt: skip
    idp.wrong_issuer = trouble == "wrong issuer"
    token = idp.sign("k1")
    verifier = make(jwks_url="http://127.0.0.1:1/keys") if trouble == "down" else make()
    assert await status_of(verifier, token) == 503
    if trouble == "down":
        return
    idp.status, idp.body, idp.wrong_issuer = 200, None, False
    clock.seconds += MISS_SECONDS
    assert await status_of(verifier, token) == 200


async def test_known_keys_outlast_an_outage_for_a_bounded_time(
    idp: FakeIdp, make: Verifier, clock: SetClock
) -> None:
    verifier, token = make(), idp.sign("k1", exp=2**33)
    assert await status_of(verifier, token) == 200
    idp.status = 500
    for _ in range(10):
        clock.seconds += (STALE_SECONDS - 10) / 10
        assert await status_of(verifier, token) == 200
        await asyncio.sleep(0.01)
    clock.seconds += 20
    assert await status_of(verifier, token) == 503


async def test_keys_without_ids_are_tried(idp: FakeIdp, make: Verifier) -> None:
    idp.without_kid = True
    token = jwt.encode(idp.claims(), idp.private["k1"], algorithm="RS256")
    assert await status_of(make(), token) == 200


def test_weak_symmetric_private_and_foreign_keys_are_left_out(keys: FakeIdp) -> None:
    weak = FakeIdp()
    weak.private["w"] = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    weak.algorithms["w"] = "RS256"
    document = {
        "keys": [
            weak.jwk("w"), keys.jwk("k1", private=True), {"kty": "oct", "k": "c2VjcmV0"},
            {**keys.jwk("k1"), "use": "enc"}, {"kty": "RSA", "n": 7}, "x", {}, None,
            {**keys.jwk("es"), "kid": 7}, keys.jwk("k2"),
        ]
    }  # fmt: skip
    assert [key.key_id for key in read_keys(document)] == ["k2"]


async def test_other_issuers_come_into_force_and_keys_of_the_same_stay(
    idp: FakeIdp, make: Verifier, clock: SetClock
) -> None:
    verifier, token = make(), idp.sign("k1")
    assert await status_of(verifier, token) == 200
    same = OidcIssuer(name="n", kind="oidc", issuer=idp.issuer, audiences=("other",))
    verifier.use(Authentication(issuers=(same,)))
    assert await status_of(verifier, token) == 401
    assert await status_of(verifier, idp.sign("k1", aud=["other", "more"])) == 200
    assert idp.fetches == 1
    verifier.use(None)
    assert await verifier.verify(token) is None


def test_claims_inside_of_others() -> None:
    claims = {"a": {"b": {"c": ["x", 1]}}, "https://acme.example/roles": "r", "a.b": "flat"}
    assert claim_texts(claims, "a.b.c") == ("x",)
    assert claim_texts(claims, "https://acme.example/roles") == ("r",)
    assert claim(claims, "a.b") == "flat"
    assert claim(claims, "a.x.c") is None
    assert claim_texts(claims, None) == ()
