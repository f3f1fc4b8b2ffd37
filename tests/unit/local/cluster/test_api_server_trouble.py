"""A part of the API server that does not answer is asked again; what it says against a call is not.

After a crash of its store the API server is ready before each of its connections to it is: one for
each kind of object. The TLS and the connections here are real.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from terrace_local.cluster import addons, api, pki
from terrace_local.cluster.api import Api
from terrace_local.cluster.errors import ClusterError, StartTimeout, Unanswered
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import ProcessTable
from terrace_local.cluster.starting import Starter


def late(_: BaseHTTPRequestHandler, ended: threading.Event) -> None:
    ended.wait(30)


def cut(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    handler.wfile.flush()


def status(code: int) -> Callable[[BaseHTTPRequestHandler, threading.Event], None]:
    def answer(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
        body = json.dumps({"message": "etcdserver: request timed out"}).encode()
        handler.send_response(code)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


TROUBLE = {"late": late, "cut": cut} | {str(code): status(code) for code in (429, 500, 503, 504)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The API server: meets the n-th call with the n-th of `trouble`, then answers."""
    paths = Paths(tmp_path / "state", tmp_path / "run")
    paths.state.mkdir()
    pki.ensure_pki(paths)
    ended = threading.Event()
    state = SimpleNamespace(paths=paths, trouble=[], asked=[])

    class Answers(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            state.asked.append((self.command, self.path.partition("?")[0]))
            self.close_connection = True
            meet = state.trouble.pop(0) if state.trouble else status(200)
            meet(self, ended)

        def do_GET(self) -> None:
            self.answer()

        def do_PATCH(self) -> None:
            self.answer()

        def do_DELETE(self) -> None:
            self.answer()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths.pki / "loopback-server.crt", paths.pki / "loopback-server.key")
    context.load_verify_locations(paths.pki / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(api, "API_URL", f"https://127.0.0.1:{listener.server_port}")
    yield state
    ended.set()
    listener.shutdown()
    listener.server_close()


@pytest.fixture
def starter(server: SimpleNamespace) -> Starter:
    """All parts run; one that does not is not what is asked here."""
    table = SimpleNamespace(
        running=lambda: {"kube-apiserver": {}}, tail=lambda *_: "", log_path=lambda name: name
    )
    return Starter(server.paths, cast("ProcessTable", table), {}, lambda _: None)


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("call", ["get", "apply", "delete"])
def test_what_may_pass_is_told_from_what_is_refused(
    server: SimpleNamespace, trouble: str, call: str
) -> None:
    calls: dict[str, Callable[[Api], Any]] = {
        "get": lambda asked: asked.get("/api/v1/x"),
        "apply": lambda asked: asked.apply("/api/v1/x", {}),
        "delete": lambda asked: asked.delete("/api/v1/x"),
    }
    with Api(server.paths, timeout=0.5) as asked:
        server.trouble = [TROUBLE[trouble]]
        with pytest.raises(Unanswered):
            calls[call](asked)
        server.trouble = [status(422)]
        with pytest.raises(ClusterError, match="422") as refused:
            calls[call](asked)
    assert not isinstance(refused.value, Unanswered)


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_step_is_taken_again_until_all_of_it_is_answered(
    server: SimpleNamespace, starter: Starter, trouble: str
) -> None:
    server.trouble = [TROUBLE[trouble], status(200), TROUBLE[trouble]]
    with Api(server.paths, timeout=0.5) as asked:
        starter.wait("kube-apiserver", "it", partial(addons.apply_rights, asked), again=Unanswered)
    last = [path.rpartition("/")[2] for _, path in server.asked[-3:]]
    assert last == [
        "terrace:kube-router",
        "terrace:kube-router",
        "terrace:apiserver-kubelet-client",
    ]
    assert len(server.asked) == 6


def test_a_refusal_ends_a_step_at_once(server: SimpleNamespace, starter: Starter) -> None:
    server.trouble = [status(403)] * 9
    with Api(server.paths) as asked, pytest.raises(ClusterError, match="403"):
        starter.wait("kube-apiserver", "it", partial(addons.apply_rights, asked), again=Unanswered)
    assert len(server.asked) == 1


def test_a_step_that_is_never_answered_says_what_was_said_last(
    server: SimpleNamespace, starter: Starter
) -> None:
    server.trouble = [status(500)] * 99
    with Api(server.paths) as asked, pytest.raises(StartTimeout, match=r"for the rights.*500"):
        starter.wait(
            "kube-apiserver",
            "the rights",
            partial(addons.apply_rights, asked),
            seconds=0.3,
            again=Unanswered,
        )
    assert len(server.asked) > 1
