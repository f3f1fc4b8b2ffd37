"""Official releases: fetched, compared with the publisher's checksum, unpacked."""

import hashlib
import ssl
import tarfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import certifi
import httpx

from terrace_local.toolchain.checksums import changed_checksum, parse_checksum, recall_checksum
from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.manifest import Tool, is_trustworthy

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 15.0
# A resolver that does not answer is not bounded by the connect timeout, so the whole probe is.
_PROBE_SECONDS = 6.0
_CHUNK = 1 << 20


class Unreachable(Exception):  # noqa: N818 - an outcome, not a failure
    """The host could not be reached; nothing was learnt about the file."""


class Releases:
    """The official sites, for one run. A host found unreachable is not asked again in this run.

    A context manager, usable from several threads.
    """

    def __init__(self, record: Path, *, connect_seconds: float = _CONNECT_SECONDS) -> None:
        self._record = record
        # The machine's own roots first (a company's proxy may be in them), then the public ones.
        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())
        self._client = httpx.Client(
            follow_redirects=True,
            verify=context,
            timeout=httpx.Timeout(_READ_SECONDS, connect=connect_seconds),
            headers={"user-agent": "terrace-toolchain"},
            event_hooks={"request": [_refuse_plain_http]},
        )
        self._lock = threading.Lock()
        self._probes: dict[str, tuple[threading.Thread, list[str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def unreachable(self, url: str) -> str | None:
        """Why the host of `url` can't be reached, or None if it answers (whatever it says)."""
        parts = urlsplit(url)
        with self._lock:
            if parts.netloc not in self._probes:
                verdict = [f"no answer in {_PROBE_SECONDS:.0f} s"]
                thread = threading.Thread(target=self._probe, args=(url, verdict), daemon=True)
                thread.start()
                self._probes[parts.netloc] = (thread, verdict)
            thread, verdict = self._probes[parts.netloc]
        thread.join(_PROBE_SECONDS)
        return verdict[0] if verdict else None

    def fetch(
        self,
        tool: Tool,
        folder: Path,
        *,
        step: Callable[[str], None] = lambda _text: None,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[Path, str]:
        """Download a tool's release file into `folder` and return it with its SHA-256, verified.

        Raises `Unreachable`, or `ToolchainError` when there is no such file, or when it is not what
        the publisher's checksum says, or not what it said when the file was first used here.
        """
        assert tool.download is not None  # noqa: S101 - the caller chose tools that have one
        url = tool.filled(tool.download.url)
        reason = self.unreachable(url)
        if reason is not None:
            raise Unreachable(reason)
        name = urlsplit(url).path.rpartition("/")[2]
        try:
            step("download: checksum")
            answer = self._client.get(tool.filled(tool.download.checksum_url))
            answer.raise_for_status()
            published = parse_checksum(answer.text, tool.download.checksum_format, name)
            recorded = recall_checksum(self._record, url)
            if recorded not in {None, published}:
                raise ToolchainError(
                    changed_checksum(self._record, url, str(recorded), published),
                    subject=tool.name,
                    step="download",
                )
            actual = self._stream(url, folder / name, step=step, check=check)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            raise self._failed(tool, f"{error.request.url} answered {status}") from error
        except httpx.TransportError as error:
            raise self._failed(tool, f"{url}: {type(error).__name__}: {error}") from error
        except (ValueError, httpx.HTTPError) as error:
            raise self._failed(tool, f"{url}: {error}") from error
        if actual != published:
            raise self._failed(
                tool, f"{url} has the wrong checksum: published {published}, received {actual}"
            )
        return folder / name, actual

    def _stream(
        self, url: str, target: Path, *, step: Callable[[str], None], check: Callable[[], None]
    ) -> str:
        digest = hashlib.sha256()
        received = 0
        with self._client.stream("GET", url) as answer, target.open("wb") as output:
            answer.raise_for_status()
            total = int(answer.headers.get("content-length", 0)) >> 20
            for chunk in answer.iter_bytes(_CHUNK):
                check()
                digest.update(chunk)
                output.write(chunk)
                received += len(chunk)
                step(f"download: {received >> 20} of {total or '?'} MiB")
        return digest.hexdigest()

    def _probe(self, url: str, verdict: list[str]) -> None:
        try:
            self._client.head(url, follow_redirects=False)
        except httpx.HTTPError as error:
            verdict[0] = f"{type(error).__name__}: {error}"
        except RuntimeError:
            pass  # the client was closed meanwhile: nobody waits for this any more
        else:
            verdict.clear()

    @staticmethod
    def _failed(tool: Tool, reason: str) -> ToolchainError:
        return ToolchainError(reason, subject=tool.name, step="download")


def _refuse_plain_http(request: httpx.Request) -> None:
    # Also for redirects: a checksum that came in the clear would prove nothing.
    if not is_trustworthy(str(request.url)):
        raise httpx.UnsupportedProtocol(f"{request.url} is not https", request=request)


def unpack(tool: Tool, archive: Path, folder: Path) -> Mapping[str, Path]:
    """Binary -> file, taken out of a verified release file. Raises `ToolchainError`."""
    assert tool.download is not None  # noqa: S101
    if not tool.download.members:
        target = folder / tool.name
        archive.rename(target)
        return {tool.name: target}
    found: dict[str, Path] = {}
    wanted = {tool.filled(path): name for name, path in tool.download.members.items()}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                content = tar.extractfile(member) if name and member.isfile() else None
                if name and content:
                    found[name] = folder / name
                    with content, found[name].open("wb") as output:
                        while chunk := content.read(_CHUNK):
                            output.write(chunk)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ToolchainError(
            f"{archive.name} can't be unpacked: {error}", subject=tool.name, step="download"
        ) from error
    missing = sorted(set(tool.binaries) - found.keys())
    if missing:
        raise ToolchainError(
            f"{archive.name} has no {', '.join(missing)}", subject=tool.name, step="download"
        )
    return found
