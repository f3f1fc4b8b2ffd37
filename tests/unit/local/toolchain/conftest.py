"""A small world: an official site, a Go module that builds in a second, an empty cache."""

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from terrace_local.toolchain import Toolchain, ToolStatus, ensure, status
from terrace_local.toolchain.manifest import Manifest
from terrace_local.toolchain.places import Places


class Site:
    """An HTTP server that publishes `files` (path -> content) and lists what was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(f"{self.command} {self.path}")
                content = site.files.get(self.path)
                self.send_response(200 if content is not None else 404)
                self.send_header("content-length", str(len(content or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content or b"")

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def publish(self, name: str, content: bytes, *, checksum: str | None = None) -> None:
        """A file and its `.sha256sum` (a wrong one if `checksum` is given)."""
        digest = checksum or hashlib.sha256(content).hexdigest()
        self.files[f"/{name}"] = content
        self.files[f"/{name}.sha256sum"] = f"{digest}  {name}\n".encode()

    def gets(self, name: str) -> int:
        return self.asked.count(f"GET /{name}")

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Recorder:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ends: list[str] = []
        self.left: list[int] = []

    def remaining(self, count: int) -> None:
        self.left.append(count)

    def begin(self, task: str, step: str) -> None: ...
    def step(self, task: str, step: str) -> None: ...

    def end(self, task: str, outcome: str) -> None:
        self.ends.append(f"{task}: {outcome}")

    def note(self, text: str) -> None:
        self.notes.append(text)


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def _hermetic(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TERRACE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(root=tmp_path / "cache")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make_tar() -> Callable[[dict[str, bytes]], bytes]:
    return tar_of


@pytest.fixture
def modules_root(tmp_path: Path) -> Path:
    """Module folder `tiny`: commands `hello` and `major/v2`, and one that does not compile."""
    root = tmp_path / "gomods"
    for command, body in {
        "hello": 'var Version = "none"\n\nfunc main() { println("hello", Version) }',
        "major/v2": 'func main() { println("major") }',
        "broken": "func main() { undefined() }",
    }.items():
        (root / "tiny" / command).mkdir(parents=True)
        (root / "tiny" / command / "main.go").write_text(f"package main\n\n{body}\n")
    (root / "tiny" / "go.mod").write_text("module example.test/tiny\n\ngo 1.21\n")
    (root / "tiny" / "go.sum").write_text("")
    return root


class World:
    """An empty cache, the tiny module and a recorder; `ensure` makes the tools it is given."""

    def __init__(self, places: Places, modules_root: Path, recorder: Recorder) -> None:
        self.places = places
        self.modules_root = modules_root
        self.recorder = recorder

    def manifest(self, *tools: dict[str, Any], **rest: Any) -> Manifest:
        modules = {"tiny": {"ldflags": "-s -w -X main.Version=1.2.3"}}
        document = {"version": 1, "modules": modules, "tools": tools, **rest}
        return Manifest.model_validate(document)

    def ensure(
        self, *tools: dict[str, Any], stage: int = 1, only: Sequence[str] = (), **rest: Any
    ) -> Toolchain:
        return ensure(
            stage,
            only=only,
            progress=self.recorder,
            manifest=self.manifest(*tools, **rest),
            modules_root=self.modules_root,
            places=self.places,
        )

    def status(self, *tools: dict[str, Any]) -> list[ToolStatus]:
        return status(
            manifest=self.manifest(*tools), modules_root=self.modules_root, places=self.places
        )


@pytest.fixture
def world(places: Places, modules_root: Path, recorder: Recorder) -> World:
    return World(places, modules_root, recorder)


@pytest.fixture
def make(world: World) -> Callable[..., Toolchain]:
    return world.ensure


@pytest.fixture
def manifest_of(world: World) -> Callable[..., Manifest]:
    return world.manifest


@pytest.fixture
def hello() -> dict[str, Any]:
    """A tool that is built from the tiny module."""
    return {
        "name": "hello",
        "version": "1.2.3",
        "since_stage": 1,
        "binaries": ["hello"],
        "build": {"module": "tiny", "packages": {"hello": "./hello"}},
    }


@pytest.fixture
def published(hello: dict[str, Any], site: Site) -> dict[str, Any]:
    """The same tool, which the site also publishes (once a test put the file there)."""
    download = {
        "url": site.url + "/{name}-{version}",
        "checksum_url": site.url + "/{name}-{version}.sha256sum",
        "checksum_format": "sha256sum",
    }
    return hello | {"download": download}
