"""A connection that is refused for a moment is made again; nothing else is, no call is."""

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import botocore.exceptions
import httpx
import openai
import pytest

from terrace_cli.connecting import PAUSES_SECONDS, again_while_refused, patient_transport
from terrace_cli.smoke.bedrock_client import converse
from terrace_cli.smoke.openai_client import chat


class Server(HTTPServer):
    """Answers 503 and counts; what it is asked before it listens is refused."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server_bind()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.calls = 0


class Handler(BaseHTTPRequestHandler):
    """One answer."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.calls += 1
        self.send_response(503)
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _get(url: str) -> None:
    with httpx.Client(transport=patient_transport(), trust_env=False) as client:
        client.get(url).raise_for_status()


def _chat(url: str) -> None:
    chat(url, "k", "m", "hello")


def _converse(url: str) -> None:
    converse(url, "k", "m", "hello", max_tokens=10)


@pytest.mark.parametrize(
    ("call", "failure"),
    [
        (_get, httpx.HTTPStatusError),
        (_chat, openai.InternalServerError),
        (_converse, botocore.exceptions.ClientError),
    ],
)
def test_a_refused_connection_is_made_again_and_an_answer_is_an_answer(
    call: Callable[[str], None], failure: type[Exception]
) -> None:
    server = Server()
    with pytest.raises(httpx.ConnectError), httpx.Client(trust_env=False) as client:
        client.get(server.url)

    def later() -> None:
        server.server_activate()
        server.timeout = 10
        server.handle_request()

    timer = threading.Timer(0.2, later)
    timer.start()
    with pytest.raises(failure):
        call(server.url)
    timer.join()
    server.server_close()
    assert server.calls == 1


def test_who_is_always_refused_hears_so_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr("time.sleep", paused.append)
    server = Server()
    with pytest.raises(httpx.ConnectError, match="refused"):
        _get(server.url)
    server.server_close()
    assert tuple(paused) == PAUSES_SECONDS


@pytest.mark.parametrize(
    "failure", [TimeoutError(), socket.gaierror(), ConnectionResetError(), httpx.ConnectTimeout("")]
)
def test_nothing_else_is_tried_again(failure: Exception) -> None:
    tried: list[Any] = []

    def call() -> None:
        tried.append(None)
        raise failure

    with pytest.raises(type(failure)):
        again_while_refused(call)
    assert len(tried) == 1
