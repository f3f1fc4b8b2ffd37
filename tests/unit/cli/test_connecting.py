"""A connection that is refused for a moment is made again; a call is not."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from terrace_cli.connecting import patient_transport


class Handler(BaseHTTPRequestHandler):
    """Answers 503, and counts."""

    calls = 0

    def do_GET(self) -> None:
        type(self).calls += 1
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_refused_connection_is_made_again_and_an_answer_is_an_answer() -> None:
    server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.server_bind()  # it does not listen yet: who connects is refused
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with pytest.raises(httpx.ConnectError), httpx.Client(trust_env=False) as client:
        client.get(url)

    def later() -> None:
        server.server_activate()
        server.handle_request()

    timer = threading.Timer(0.2, later)
    timer.start()
    with httpx.Client(transport=patient_transport(), trust_env=False) as client:
        assert client.get(url).status_code == 503
    timer.join()
    server.server_close()
    assert Handler.calls == 1
