"""Making binaries available: from the cache, PATH, an official release, or the Go module."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

from terrace_local.toolchain.bins import Binary, Toolchain, gather
from terrace_local.toolchain.cache import Entry, find_entry, is_present, publish, work_folder
from terrace_local.toolchain.checksums import record_checksum
from terrace_local.toolchain.download import Releases, Unreachable, unpack
from terrace_local.toolchain.errors import Stopped, ToolchainError
from terrace_local.toolchain.go_build import Builder
from terrace_local.toolchain.locks import locked
from terrace_local.toolchain.manifest import MODULES_ROOT, STAGES, Manifest, Tool, load_manifest
from terrace_local.toolchain.on_path import find_on_path
from terrace_local.toolchain.places import Places, recipe_hash
from terrace_local.toolchain.progress import Progress, Silent
from terrace_local.toolchain.settings import RunSettings

_ENTRY_SOURCE = {"downloaded": "download", "built": "build"}
_DOWNLOADS_AT_ONCE = 4


def ensure(
    stage: int,
    *,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    manifest: Manifest | None = None,
    modules_root: Path = MODULES_ROOT,
    places: Places | None = None,
) -> Toolchain:
    """Make all binaries that `stage` needs available, and return them; with `only`, those tools.

    Each is taken from the cache, else from PATH (that version exactly), else from its official
    release (verified), else built from its Go module; `TERRACE_TOOLCHAIN_SOURCE` may name fewer of
    `path,download,build`, or another order. `TERRACE_TOOLCHAIN_JOBS` bounds how many modules are
    built at once. What is finished stays finished, however the run ends. Safe to be called by
    several processes at once. Raises `ToolchainError`.
    """
    if stage not in STAGES:
        valid = ", ".join(map(str, STAGES))
        raise ToolchainError(f"there is no stage {stage}; valid stages are {valid}")
    manifest = manifest or load_manifest()
    places = places or Places.from_environment()
    progress = progress or Silent()
    try:
        with closing(_Run(manifest, modules_root, places, progress)) as run:
            return run.ensure(manifest.for_stage(stage, only))
    except OSError as error:
        raise ToolchainError(f"{error.strerror}: {error.filename or places.root}") from error


@dataclass
class _Run:
    """One call of `ensure`."""

    manifest: Manifest
    modules_root: Path
    places: Places
    progress: Progress
    settings: RunSettings = field(default_factory=RunSettings.from_environment)
    stop: Event = field(default_factory=Event)
    found: dict[str, dict[str, Binary]] = field(default_factory=dict)
    refusals: dict[str, list[str]] = field(default_factory=dict)
    _wanted: int = 0
    _lock: Lock = field(default_factory=Lock)
    _stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        self.stop.set()
        self._stack.close()

    def ensure(self, tools: Sequence[Tool]) -> Toolchain:
        recipes = {tool.name: recipe_hash(tool, self.manifest, self.modules_root) for tool in tools}
        self._wanted = sum(len(tool.binaries) for tool in tools)
        missing = self._look_in_cache(tools, recipes)
        self.progress.remaining(sum(len(tool.binaries) for tool in missing))
        if missing:
            # Everybody takes the locks in one order, so nobody waits in a circle.
            for tool in sorted(missing, key=lambda tool: tool.name):
                self._take_lock(tool, recipes[tool.name])
            missing = self._look_in_cache(missing, recipes)
        if missing:
            work = self._stack.enter_context(work_folder(self.places))
            self._say_what_is_damaged(missing, recipes)
            for source in self.settings.sources:
                missing = self._from(source, missing, recipes, work)
            self._fail_for(missing)
        binaries: dict[str, Binary] = {}
        for part in self.found.values():
            binaries |= part
        return gather(self.places, binaries)

    def _from(
        self, source: str, missing: list[Tool], recipes: Mapping[str, str], work: Path
    ) -> list[Tool]:
        if not missing:
            return []
        if source == "path":
            self._look_on_path(missing)
        elif source == "download":
            self._download(missing, recipes, work)
        else:
            self._build(missing, recipes, work)
        return [tool for tool in missing if tool.name not in self.found]

    # --- cache and PATH ---

    def _look_in_cache(self, tools: Sequence[Tool], recipes: Mapping[str, str]) -> list[Tool]:
        missing: list[Tool] = []
        for tool in tools:
            entry = find_entry(self.places, tool, recipes[tool.name])
            if entry is not None and _ENTRY_SOURCE[entry.source] in self.settings.sources:
                self._have(tool, entry)
            else:
                missing.append(tool)
        return missing

    def _look_on_path(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            files = find_on_path(tool, ours=self.places.root)
            if files is None:
                self._refuse(tool, f"path: no {tool.name} {tool.version} on PATH")
                continue
            self._add(
                tool,
                {
                    name: Binary(
                        name=name, version=tool.version, source="path", file=file, sha256=""
                    )
                    for name, file in files.items()
                },
            )

    def _take_lock(self, tool: Tool, recipe: str) -> None:
        def waiting(holder: str) -> None:
            self.progress.note(
                f"waiting for another process (pid {holder}) that is making {tool.name}"
            )

        file = self.places.locks / f"{tool.name}-{tool.version}-{recipe}.lock"
        self._stack.enter_context(locked(file, waiting=waiting, check=self._check))

    def _say_what_is_damaged(self, tools: Sequence[Tool], recipes: Mapping[str, str]) -> None:
        for tool in tools:
            entry = find_entry(self.places, tool, recipes[tool.name])
            if entry is None and is_present(self.places, tool, recipes[tool.name]):
                self.progress.note(f"the cached {tool.name} is damaged: it is made again")

    # --- official releases ---

    def _download(self, tools: Sequence[Tool], recipes: Mapping[str, str], work: Path) -> None:
        by_url: dict[str, list[Tool]] = {}
        for tool in tools:
            if tool.download is None:
                self._refuse(tool, "download: it is published nowhere")
            else:
                by_url.setdefault(tool.filled(tool.download.url), []).append(tool)
        with Releases(self.places.checksums) as releases:
            said: set[str] = set()

            def one(url: str, sharing: list[Tool]) -> None:
                try:
                    self._download_one(url, sharing, recipes, work, releases)
                except Unreachable as error:
                    host = url.split("/")[2]
                    with self._lock:
                        first = host not in said
                        said.add(host)
                    if first:
                        self.progress.note(f"{host} can't be reached ({error}): skipped")
                    for tool in sharing:
                        self._refuse(tool, f"download: {host} can't be reached: {error}")

            self._all_of(
                [lambda u=url, s=sharing: one(u, s) for url, sharing in by_url.items()],
                _DOWNLOADS_AT_ONCE,
            )

    def _download_one(
        self,
        url: str,
        sharing: list[Tool],
        recipes: Mapping[str, str],
        work: Path,
        releases: Releases,
    ) -> None:
        task = ", ".join(tool.name for tool in sharing)
        if (reason := releases.unreachable(url)) is not None:
            raise Unreachable(reason)
        folder = work / f"download-{sharing[0].name}"
        folder.mkdir()
        self.progress.begin(task, "download")
        try:
            archive, digest = releases.fetch(
                sharing[0],
                folder,
                step=lambda text: self.progress.step(task, text),
                check=self._check,
            )
            for tool in sharing:
                files = unpack(tool, archive, folder)
                record_checksum(self.places.checksums, url, digest)
                entry = publish(
                    self.places,
                    tool,
                    recipes[tool.name],
                    source="downloaded",
                    origin=f"{url} sha256:{digest}",
                    files=files,
                    work=work,
                )
                self._have(tool, entry)
            self.progress.end(task, "downloaded and verified")
        except ToolchainError as error:
            self.progress.end(task, f"not downloaded: {error}")
            for tool in sharing:
                self._refuse(tool, str(error))
        except BaseException:
            self.progress.end(task, "stopped")
            raise

    # --- Go modules ---

    def _build(self, tools: Sequence[Tool], recipes: Mapping[str, str], work: Path) -> None:
        by_module: dict[str, list[Tool]] = {}
        for tool in tools:
            if tool.build is None:
                self._refuse(tool, "build: it has no Go module")
            else:
                by_module.setdefault(tool.build.module, []).append(tool)
        builder = Builder(
            modules=self.manifest.modules,
            modules_root=self.modules_root,
            logs=self.places.logs,
            stop=self.stop,
            parallel=min(self.settings.jobs, len(by_module)) or 1,
        )
        self._all_of(
            [
                lambda m=module, t=sharing: self._build_one(m, t, recipes, work, builder)
                for module, sharing in sorted(by_module.items(), key=lambda item: -len(item[1]))
            ],
            self.settings.jobs,
        )

    def _build_one(
        self,
        module: str,
        sharing: list[Tool],
        recipes: Mapping[str, str],
        work: Path,
        builder: Builder,
    ) -> None:
        count = sum(len(tool.binaries) for tool in sharing)
        task = sharing[0].name if len(sharing) == 1 else f"{module} ({count} binaries)"
        self.progress.begin(task, "build")
        folder = work / f"build-{module}"
        folder.mkdir()
        try:
            built = builder.build(
                module, sharing, folder, step=lambda text: self.progress.step(task, text)
            )
            self.progress.step(task, "storing")
            for tool in sharing:
                entry = publish(
                    self.places,
                    tool,
                    recipes[tool.name],
                    source="built",
                    origin=f"module {module}",
                    files=built[tool.name],
                    work=work,
                )
                self._have(tool, entry)
        except ToolchainError as error:
            self.progress.end(task, "failed")
            earlier = [reason for tool in sharing for reason in self.refusals.get(tool.name, [])]
            raise ToolchainError(
                "no source worked",
                subject=", ".join(tool.name for tool in sharing),
                step="build",
                last_lines=[*dict.fromkeys(earlier), *str(error).splitlines()],
            ) from error
        except BaseException:
            self.progress.end(task, "stopped")
            raise
        self.progress.end(task, "built")

    # --- bookkeeping ---

    def _all_of(self, tasks: Sequence[Callable[[], None]], at_once: int) -> None:
        """Run tasks in threads. The first failure, or Ctrl-C, stops the others and is raised."""
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            pending: set[Future[None]] = {pool.submit(task) for task in tasks}
            try:
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            except BaseException:
                self.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _have(self, tool: Tool, entry: Entry) -> None:
        self._add(
            tool,
            {
                name: Binary(
                    name=name,
                    version=tool.version,
                    source=entry.source,
                    file=entry.folder / name,
                    sha256=digest,
                )
                for name, digest in entry.files.items()
            },
        )

    def _add(self, tool: Tool, binaries: dict[str, Binary]) -> None:
        with self._lock:
            self.found[tool.name] = binaries
            left = self._wanted - sum(len(part) for part in self.found.values())
        self.progress.remaining(left)

    def _refuse(self, tool: Tool, reason: str) -> None:
        with self._lock:
            self.refusals.setdefault(tool.name, []).append(reason)

    def _check(self) -> None:
        if self.stop.is_set():
            raise Stopped

    def _fail_for(self, missing: Sequence[Tool]) -> None:
        if missing:
            raise ToolchainError(
                "no source worked for it",
                subject=", ".join(tool.name for tool in missing),
                last_lines=[
                    f"{tool.name}: {reason}"
                    for tool in missing
                    for reason in self.refusals.get(tool.name, [])
                ],
            )
