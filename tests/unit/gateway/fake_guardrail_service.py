"""Bedrock's ``ApplyGuardrail`` and a guardrail over HTTP, written like the real ones.

The Bedrock face keeps its own bill: text units of what it really received.
"""

import asyncio
import json
import math
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PRICE = {"topicPolicyUnits": 150, "contentPolicyUnits": 150, "sensitiveInformationPolicyUnits": 100}
"""Micro-USD per text unit: the fake's own table."""


class FakeGuardrailService:
    """Blocks ``BOMB``, masks ``PIN1234``, flags ``RUDE`` (detect only)."""

    def __init__(self) -> None:
        self.bill: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any]] = []
        self.status = 200
        self.own_word = True
        """Whether an error is AWS's, and not of something on the way."""
        self.page = False
        """Whether an error is a page of HTML, whatever its headers say of AWS."""
        self.hang = False
        self.cut = False
        self.answer: bytes | None = None
        self.without_usage = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["FakeGuardrailService"]:
        app = web.Application()
        app.router.add_post("/guardrail/{id:.+}/version/{version}/apply", self._apply)
        app.router.add_post("/check", self._check)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _apply(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        authorization = request.headers.get("authorization", "")
        self.seen.append({"body": body, "path": request.raw_path, "authorization": authorization})
        if not authorization.startswith("AWS4-HMAC-SHA256 Credential=AKID/"):
            return web.json_response({"message": "who?"}, status=403)
        if body["source"] not in ("INPUT", "OUTPUT"):
            return web.json_response({"message": "source"}, status=400)
        if self.status != 200:
            own = {"x-amzn-requestid": str(uuid.uuid4())} if self.own_word else {}
            if self.page:
                page = "<html>no</html>"
                return web.Response(
                    text=page, content_type="text/html", status=self.status, headers=own
                )
            return web.json_response({"message": "no"}, status=self.status, headers=own)
        texts = [block["text"]["text"] for block in body["content"]]
        units = sum(max(1, math.ceil(len(text) / 1000)) for text in texts)
        self.bill.append({"units": units, "micro_usd": units * sum(PRICE.values())})
        if self.hang:
            await asyncio.sleep(30)
        if self.cut:
            assert request.transport is not None
            request.transport.abort()
        if self.answer is not None:
            return web.Response(
                body=self.answer,
                content_type="application/json",
                headers={"x-amzn-requestid": str(uuid.uuid4())},
            )
        return web.json_response(
            self._verdict(texts, units), headers={"x-amzn-requestid": str(uuid.uuid4())}
        )

    def _verdict(self, texts: list[str], units: int) -> dict[str, Any]:
        joined = "".join(texts)
        assessment: dict[str, Any] = {}
        action, outputs = "NONE", []
        if "RUDE" in joined:
            assessment["contentPolicy"] = {
                "filters": [{"type": "INSULTS", "confidence": "HIGH", "action": "NONE",
                             "detected": True}]
            }  # fmt: skip
        if "PIN1234" in joined:
            action = "GUARDRAIL_INTERVENED"
            outputs = [{"text": text.replace("PIN1234", "{PIN}")} for text in texts]
            assessment["sensitiveInformationPolicy"] = {
                "piiEntities": [{"match": "PIN1234", "type": "PIN", "action": "ANONYMIZED",
                                 "detected": True}]
            }  # fmt: skip
        if "BOMB" in joined:
            action = "GUARDRAIL_INTERVENED"
            outputs = [{"text": "Sorry."}]
            assessment["topicPolicy"] = {
                "topics": [{"name": "Weapons", "type": "DENY", "action": "BLOCKED",
                            "detected": True}]
            }  # fmt: skip
            assessment["wordPolicy"] = {
                "customWords": [{"match": "BOMB", "action": "BLOCKED", "detected": True}]
            }
        usage = {**{kind: units for kind in PRICE}, "wordPolicyUnits": units,
                 "sensitiveInformationPolicyFreeUnits": units,
                 "contextualGroundingPolicyUnits": 0}  # fmt: skip
        return {
            **({} if self.without_usage else {"usage": usage}),
            "action": action,
            "outputs": outputs,
            "assessments": [assessment],
        }

    async def _check(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(
            {"body": await request.json(), "authorization": request.headers.get("authorization")}
        )
        if self.hang:
            await asyncio.sleep(30)
        if self.status != 200:
            return web.Response(status=self.status)
        return web.Response(body=self.answer or b"{}", content_type="application/json")


def answer(value: object) -> bytes:
    """JSON."""
    return json.dumps(value).encode()
