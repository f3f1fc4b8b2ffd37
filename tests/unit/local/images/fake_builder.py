"""An ImageBuilder that builds nothing, keeps a record, and can fail in the ways a real one does."""

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from terrace_local.images.builder import BuildRequest
from terrace_local.images.errors import ImageError


@dataclass
class FakeBuilder:
    """Images are the names and bytes of their context; archives are those as JSON."""

    built: list[str] = field(default_factory=list)
    requests: dict[str, BuildRequest] = field(default_factory=dict)
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)
    taken_in: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resets: int = 0
    trims: int = 0
    salt: str = ""
    while_building: Callable[[str], None] = lambda _reference: None
    while_writing: Callable[[Path], None] = lambda _part: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pull(self, source: str, *, seconds: float) -> str | None:
        assert seconds > 0
        return source

    def take_in(self, archive: Path, reference: str) -> None:
        assert archive.exists()
        self.taken_in.append(reference)

    def take_in_root(self, root_tar: Path, reference: str) -> None:
        raise AssertionError(f"{root_tar} for {reference}: the registry had the image")

    def build(self, request: BuildRequest) -> None:
        if self.failures:
            raise ImageError(self.failures.pop(0))
        files = {
            file.relative_to(request.context).as_posix(): hashlib.sha256(
                file.read_bytes()
            ).hexdigest()
            for file in request.context.rglob("*")
            if file.is_file()
        }
        with self.lock:
            self.built.append(request.reference)
            self.requests[request.reference] = request
            self.contexts[request.reference] = files
        self.while_building(request.reference)

    def write_archive(self, reference: str, archive: Path) -> None:
        content = {"ref": reference, "files": self.contexts[reference], "salt": self.salt}
        archive.write_text(json.dumps(content))
        self.while_writing(archive)

    def reset(self) -> None:
        self.resets += 1

    def trim(self) -> None:
        self.trims += 1
