"""A stand-in for the gateway's admin API: keeps keys and checks the admin key, over real HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ADMIN_KEY = "tadm-unit"


class FakeAdmin:
    """Start with `with FakeAdmin() as admin`; `url`, `calls` and `answers` are for the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                self._answer("GET", None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                self._answer("POST", json.loads(body or b"{}"))

            def _answer(self, method: str, body: Any) -> None:
                if self.headers.get("authorization") != f"Bearer {ADMIN_KEY}":
                    status, document = 401, _error("invalid admin key")
                else:
                    status, document = outer.handle(method, self.path, body)
                text = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeAdmin":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        self.calls.append((method, target, body))
        path = urlsplit(target).path
        if path in self.answers:
            return self.answers[path]
        if (method, path) == ("POST", "/admin/v1/keys"):
            key_id = f"key_{len(self.keys)}"
            self.keys[key_id] = {
                "key_id": key_id,
                "team": body["team"],
                "name": body.get("name"),
                "models": body.get("models"),
                "budget_micro_usd": body.get("budget_micro_usd"),
                "max_requests": body.get("max_requests"),
                "requests_per_minute": body.get("requests_per_minute"),
                "revoked_at": None,
                "settled_micro_usd": 11,
                "outstanding_micro_usd": 0,
            }
            return 201, {"key": "tk-shown-once", **self.keys[key_id]}
        if (method, path) == ("GET", "/admin/v1/keys"):
            team = parse_qs(urlsplit(target).query).get("team", [None])[0]
            return 200, {"keys": [k for k in self.keys.values() if team in (None, k["team"])]}
        if path.endswith("/revoke"):
            key = self.keys.get(path.split("/")[-2])
            if key is None:
                return 404, _error("there is no such key")
            key["revoked_at"] = key["revoked_at"] or "2026-11-30T00:00:00Z"
            return 200, key
        return 404, _error(f"no route {method} {path}")


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": "x"}}
