"""A gateway, a provider and a Prometheus in one small server, to try `terrace smoke` on.

It keeps the contract just well enough for the real clients, and can be told to break it.
"""

import itertools
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from .event_frames import frame

ADMIN_KEY = "tadm-fake"
COST = 20
RESERVED = 40
TEXT = ("one ", "two ", "three")
GOVERNANCE = yaml.safe_dump({"models": [{"name": "sim-small"}, {"name": "sim-embed"}]})
_OPENAI_USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


class RefusedError(Exception):
    def __init__(self, status: int, code: str, **headers: str) -> None:
        self.status, self.code, self.headers = status, code, headers


class FakePlatform:
    """`broken` names what it does wrong: see its uses below."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.keys: dict[str, dict[str, Any]] = {}
        self.ledger: list[dict[str, Any]] = []
        self.bill: list[dict[str, Any]] = []
        self.killed: set[str] = set()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                self._serve(None)

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("content-length", 0)))
                self._serve(json.loads(text or b"{}"))

            def _serve(self, body: Any) -> None:
                bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
                key = bearer or self.headers.get("x-api-key", "")
                try:
                    with outer._lock:
                        kind, content = outer.handle(self.command, self.path, key, body)
                    status, headers = 200, {}
                except RefusedError as refused:
                    error = {
                        "message": refused.code,
                        "type": "x",
                        "param": None,
                        "code": refused.code,
                    }
                    status, kind = refused.status, "application/json"
                    content, headers = json.dumps({"error": error}).encode(), refused.headers
                self.send_response(status)
                for name, value in {"content-type": kind, **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakePlatform":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(  # noqa: PLR0911  one line per route
        self, method: str, target: str, key: str, body: Any
    ) -> tuple[str, bytes]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if path.startswith("/admin/"):
            return _json(self._admin(method, path, query, key, body))
        if path in ("/bill", "/api/v1/query"):
            return _json(self._record(query))
        if path == "/v1/models":
            listed = self._key(key)["models"] + (["extra"] if "models" in self.broken else [])
            return _json({"object": "list", "data": [{"id": n, "object": "model"} for n in listed]})
        if path == "/v1/chat/completions":
            return self._chat(key, body)
        if path == "/v1/messages/count_tokens":
            self._count(key, body["model"])
            return _json({"input_tokens": 9})
        if path in _ANSWERS:
            self._call(key, body["model"])
            return _ANSWERS[path](bool(body.get("stream")))
        if path.startswith("/model/"):
            self._call(key, "bedrock-claude" if "claude" in unquote(path) else "?")
            return _converse_stream() if path.endswith("-stream") else _json(_converse())
        if "routes" in self.broken:
            return _json({"object": "list", "data": []})
        raise RefusedError(404, "route_not_found")

    def _key(self, key: str) -> dict[str, Any]:
        found = self.keys.get(key)
        if found is None or (found["revoked_at"] and "revocation" not in self.broken):
            raise RefusedError(401, "invalid_api_key")
        if key in found["old_secrets"] and "rotation" not in self.broken:
            raise RefusedError(401, "invalid_api_key")
        if f"key:{found['key_id']}" in self.killed and "kill switch" not in self.broken:
            raise RefusedError(403, "killed")
        return found

    def _call(self, key: str, model: str, *, hidden: bool = False) -> None:
        state = self._key(key)
        if state["models"] and model not in state["models"] and "models" not in self.broken:
            raise RefusedError(403, "model_not_allowed")
        budget, rpm = state["budget_micro_usd"], state["requests_per_minute"]
        capped = budget is not None and "budget" not in self.broken
        if capped and state["settled_micro_usd"] + RESERVED > budget:
            raise RefusedError(429, "budget_exhausted")
        if rpm is not None and state["calls"] >= rpm:
            raise RefusedError(429, "rate_limited", **{"retry-after": "7"})
        state["calls"] += 1
        state["settled_micro_usd"] += COST
        attempt = f"att_{next(self._numbers)}"
        entry = {
            "attempt_id": attempt,
            "key_id": state["key_id"],
            "kind": "attempt",
            "amount_micro_usd": COST,
        }
        if not hidden:
            self.ledger.append(entry)
        lines = 2 if "double billing" in self.broken else 1
        for _ in range(lines):
            line = {
                "seq": len(self.bill) + 1,
                "attempt_id": attempt,
                "cost_micro_usd": COST + ("price" in self.broken),
                "status": "final",
            }
            self.bill.append(line)
        if "hidden call" in self.broken:
            self.bill.append(
                {**self.bill[-1], "seq": len(self.bill) + 1, "attempt_id": "att_hidden"}
            )

    def _count(self, key: str, model: str) -> None:
        """An attempt that costs nothing and is not billed."""
        state = self._key(key)
        if "counting" in self.broken:
            self._call(key, model, hidden=True)
        attempt = f"att_{next(self._numbers)}"
        self.ledger.append(
            {
                "attempt_id": attempt,
                "key_id": state["key_id"],
                "kind": "attempt",
                "amount_micro_usd": 0,
            }
        )

    def _chat(self, key: str, body: Any) -> tuple[str, bytes]:
        if body.get("n", 1) > 1:
            self._key(key)
            raise RefusedError(400, "unsupported_parameter")
        self._call(key, body["model"])
        usage = _OPENAI_USAGE
        shared = {"id": "c", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(TEXT)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return _json(
                {**shared, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        pieces = ["".join(TEXT)] if "streaming" in self.broken else TEXT
        chunks = [
            {**shared, "object": "chat.completion.chunk",
             "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
            for piece in pieces
        ]  # fmt: skip
        chunks.append({**shared, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
        return "text/event-stream", "".join(lines).encode()

    def _admin(  # noqa: PLR0911
        self, method: str, path: str, query: dict[str, list[str]], key: str, body: Any
    ) -> dict[str, Any]:
        if key != ADMIN_KEY:
            raise RefusedError(401, "invalid_api_key")
        if (method, path) == ("POST", "/admin/v1/keys"):
            secret = f"tk-{secrets.token_urlsafe(32)}"
            self.keys[secret] = {
                "models": None, "budget_micro_usd": None, "requests_per_minute": None,
                "revoked_at": None, "settled_micro_usd": 0, "outstanding_micro_usd": 0, "calls": 0,
                **body, "key_id": f"key_{len(self.keys)}", "old_secrets": set(),
            }  # fmt: skip
            return {"key": secret, **_shown(self.keys[secret])}
        if path == "/admin/v1/keys":
            return {"keys": [_shown(state) for state in self.keys.values()]}
        if path == "/admin/v1/kill":
            self.killed.add(body["target"])
            return {"target": body["target"], "active": True}
        if path == "/admin/v1/unkill":
            self.killed.discard(body["target"])
            return {"target": body["target"], "active": False}
        if path == "/admin/v1/governance":
            return {"version": 1, "text": GOVERNANCE}
        if path == "/admin/v1/governance/plan":
            return self._plan(body["text"])
        if path == "/admin/v1/audit/verify":
            whole = "audit" not in self.broken
            findings = [] if whole else [{"kind": "changed", "writer": "w-1", "seq": 3}]
            return {
                "whole": whole, "entries": len(self.ledger), "chains": 2, "findings": findings,
            }  # fmt: skip
        if path == "/admin/v1/ledger":
            wanted = query.get("key_id", [None])[0]
            return {
                "entries": [e for e in self.ledger if wanted in (None, e["key_id"])],
                "next": None,
            }
        for state in self.keys.values():
            if path == f"/admin/v1/keys/{state['key_id']}/revoke":
                state["revoked_at"] = "now"
                return _shown(state)
            if path == f"/admin/v1/keys/{state['key_id']}/rotate":
                return self._rotate(state, body)
        raise RefusedError(404, "route_not_found")

    def _rotate(self, state: dict[str, Any], body: Any) -> dict[str, Any]:
        if not body["overlap_seconds"]:
            state["old_secrets"] |= {secret for secret, s in self.keys.items() if s is state}
        secret = f"tk-{secrets.token_urlsafe(32)}"
        self.keys[secret] = state
        return {"key": secret, **_shown(state)}

    def _plan(self, text: str) -> dict[str, Any]:
        wanted = {model["name"] for model in yaml.safe_load(text)["models"]}
        changes = [
            {"action": "remove", "kind": "model", "name": name, "detail": []}
            for name in ("sim-small", "sim-embed")
            if name not in wanted and "plan" not in self.broken
        ]
        return {"same": not changes, "changes": changes, "findings": [], "blocking": []}

    def _record(self, query: dict[str, list[str]]) -> dict[str, Any]:
        if "query" not in query:
            after = int(query.get("after", ["0"])[0])
            return {"entries": [e for e in self.bill if e["seq"] > after][:5]}
        name = query["query"][0]
        money = "micro_usd" in name
        calls = self.bill if "simulator" in name else self.ledger
        value = sum(e["amount_micro_usd"] for e in self.ledger) if money else len(calls)
        if "metrics" in self.broken:
            value = 0
        return {"data": {"result": [{"metric": {"pod": "a"}, "value": [0, str(value)]}]}}


def _shown(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "old_secrets"}


def _json(document: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(document).encode()


def _converse() -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": "".join(TEXT)}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 9, "outputTokens": 3, "totalTokens": 12},
        "metrics": {"latencyMs": 1},
    }


def _converse_stream() -> tuple[str, bytes]:
    frames = [frame("messageStart", {"role": "assistant"})]
    frames += [
        frame("contentBlockDelta", {"delta": {"text": piece}, "contentBlockIndex": 0})
        for piece in TEXT
    ]
    frames.append(frame("messageStop", {"stopReason": "end_turn"}))
    frames.append(
        frame(
            "metadata",
            {
                "usage": {"inputTokens": 9, "outputTokens": 3, "totalTokens": 12},
                "metrics": {"latencyMs": 1},
            },
        )
    )
    return "application/vnd.amazon.eventstream", b"".join(frames)


def _events(*events: dict[str, Any]) -> tuple[str, bytes]:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return "text/event-stream", "".join(lines).encode()


def _completion(streamed: bool) -> tuple[str, bytes]:
    del streamed
    choice = {"index": 0, "text": "".join(TEXT), "finish_reason": "stop", "logprobs": None}
    return _json(
        {"id": "c", "object": "text_completion", "created": 1, "model": "sim-small",
         "choices": [choice], "usage": _OPENAI_USAGE}
    )  # fmt: skip


def _embeddings(streamed: bool) -> tuple[str, bytes]:
    del streamed
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
    return _json(
        {"object": "list", "model": "sim-embed", "data": [vector],
         "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    )  # fmt: skip


def _response(streamed: bool) -> tuple[str, bytes]:
    part = {"type": "output_text", "text": "".join(TEXT), "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    whole = {
        "id": "r", "object": "response", "created_at": 1, "model": "sim-small",
        "status": "completed", "output": [{**message, "content": [part]}],
        "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
        "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12,
                  "input_tokens_details": {"cached_tokens": 0},
                  "output_tokens_details": {"reasoning_tokens": 0}},
    }  # fmt: skip
    if not streamed:
        return _json(whole)
    place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    deltas = [
        {"type": "response.output_text.delta", "delta": piece, "sequence_number": n, **place}
        for n, piece in enumerate(TEXT)
    ]
    return _events(*deltas, {"type": "response.completed", "sequence_number": 9, "response": whole})


def _message(streamed: bool) -> tuple[str, bytes]:
    usage = {"input_tokens": 9, "output_tokens": 3}
    whole = {
        "id": "m", "type": "message", "role": "assistant", "model": "sim-small",
        "content": [{"type": "text", "text": "".join(TEXT)}], "stop_reason": "end_turn",
        "usage": usage,
    }  # fmt: skip
    if not streamed:
        return _json(whole)
    start = {**whole, "content": [], "usage": {"input_tokens": 9, "output_tokens": 0}}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in TEXT
    ]
    return _events(
        {"type": "message_start", "message": start},
        *deltas,
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    )


_ANSWERS = {
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/v1/embeddings": _embeddings,
    "/v1/messages": _message,
}
