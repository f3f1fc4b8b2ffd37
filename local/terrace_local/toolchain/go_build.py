"""The fallback: compiling tools from their Go modules, each at the content that go.sum pins."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.manifest import Build, GeneratedFile, GoModule, ModuleFile, Tool
from terrace_local.toolchain.process import last_lines, run_logged

_GIB = 1 << 30
_GO_COMMAND_SECONDS = 600
_FOLLOW_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Compiles module folders below `modules_root`. One instance serves one run."""

    modules: Mapping[str, GoModule]
    modules_root: Path
    logs: Path
    stop: Event
    parallel: int

    def build(
        self,
        module: str,
        tools: Sequence[Tool],
        folder: Path,
        *,
        step: Callable[[str], None] = lambda _text: None,
    ) -> Mapping[str, Mapping[str, Path]]:
        """Compile tools of one module in one go: tool -> binary -> file, below `folder`.

        Raises `ToolchainError` (no Go, a Go that is too old, a failed build) and `Stopped`.
        """
        step("reading the module")
        log = self.logs / f"go-{module}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        scratch = folder / f"module-{module}"
        shutil.copytree(self.modules_root / module, scratch)
        check_go(scratch)
        step("fetching modules")
        for generated in self.modules[module].generated:
            self._generate(generated, scratch)
        step("compiling and linking")
        over = Event()
        follower = Thread(target=_follow, args=(log, over, step), daemon=True)
        follower.start()
        try:
            self._compile(module, tools, scratch, log)
        finally:
            over.set()
            follower.join()
        return {tool.name: self._collect(tool, folder, folder / f"out-{module}") for tool in tools}

    def _compile(self, module: str, tools: Sequence[Tool], scratch: Path, log: Path) -> None:
        recipe = self.modules[module]
        output = scratch.with_name(f"out-{module}")
        output.mkdir()
        packages = [package for tool in tools for package in _build(tool).packages.values()]
        argv = ["go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false"]
        argv += ["-p", str(_compile_processes(self.parallel))]
        argv += ["-tags", ",".join(recipe.tags)] if recipe.tags else []
        argv += ["-ldflags", recipe.ldflags, "-o", f"{output}/", *packages]
        run_logged(
            argv,
            subject=f"{', '.join(tool.name for tool in tools)} (module {module})",
            step="go build",
            log=log,
            folder=scratch,
            # Go's own work folder goes with ours, or a killed build would leave gigabytes behind.
            environment=go_environment() | {"GOTMPDIR": str(scratch.parent)},
            stop=self.stop,
        )

    def _collect(self, tool: Tool, folder: Path, output: Path) -> Mapping[str, Path]:
        build = _build(tool)
        files: dict[str, Path] = {}
        for name, package in build.packages.items():
            files[name] = output / _output_name(package, self.modules_root / build.module)
        for name, copied in build.copied.items():
            resolved_in = folder / f"module-{tool.name}-{name}"
            shutil.copytree(self.modules_root / copied.resolved_in, resolved_in)
            files[name] = folder / f"{tool.name}-{name}"
            shutil.copyfile(self._module_file(copied, resolved_in), files[name])
        return files

    def _generate(self, generated: GeneratedFile, scratch: Path) -> None:
        content = self._module_file(generated, scratch).read_bytes()
        if generated.set_json:
            document = json.loads(content) | generated.set_json
            content = json.dumps(document, separators=(",", ":")).encode()
        (scratch / generated.path).write_bytes(content)

    def _module_file(self, file: ModuleFile, module_folder: Path) -> Path:
        """A file of a module at the version that the folder's go.mod selects, checked by go.sum."""
        log = self.logs / f"{module_folder.parent.name}-{module_folder.name}.log"
        try:
            run_logged(
                ["go", "mod", "download", "-json", file.module],
                subject=f"module {file.module}",
                step="go mod download",
                log=log,
                folder=module_folder,
                environment=go_environment(),
                stop=self.stop,
            )
            text = log.read_text(encoding="utf-8")
            found = Path(json.loads(text[text.index("\n{") : text.rindex("}") + 1])["Dir"])
        except (ValueError, KeyError) as error:
            raise ToolchainError(
                f"module {file.module}: unexpected answer",
                step="go mod download",
                last_lines=last_lines(log),
            ) from error
        log.unlink()
        if not (found / file.source).is_file():
            raise ToolchainError(
                f"module {file.module} has no {file.source}", step="go mod download"
            )
        return found / file.source


def check_go(module_folder: Path) -> None:
    """Raise `ToolchainError` unless the `go` on PATH can build this module.

    Asked inside the module, so that a Go which may fetch newer toolchains (GOTOOLCHAIN=auto) does.
    """
    go_mod = (module_folder / "go.mod").read_text(encoding="utf-8")
    match = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    needed = match.group(1) if match else "1.21"
    advice = f"install Go {needed} or newer (https://go.dev/dl/) and put it on PATH"
    if shutil.which("go") is None:
        raise ToolchainError(f"there is no `go` on PATH; {advice}", step="go build")
    done = subprocess.run(
        ["go", "env", "GOVERSION"],
        cwd=module_folder,
        env=go_environment(),
        capture_output=True,
        text=True,
        timeout=_GO_COMMAND_SECONDS,
        check=False,
    )
    said = done.stdout.strip()
    if done.returncode != 0 or _version(said) < _version(needed):
        found = said or done.stderr.strip()
        raise ToolchainError(f"the Go on PATH is too old ({found}); {advice}", step="go build")


def go_environment() -> dict[str, str]:
    """The caller's environment, without what would change the outcome of a build."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"GOFLAGS", "GOOS", "GOARCH", "GOWORK", "GOEXPERIMENT", "GO111MODULE"}
    }
    environment |= {"CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": "amd64", "GOWORK": "off"}
    if cache := os.environ.get("TERRACE_GOCACHE"):
        environment["GOCACHE"] = cache
    return environment


def available_memory() -> int:
    """Bytes that could be used without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _build(tool: Tool) -> Build:
    assert tool.build is not None  # noqa: S101 - only tools with a build get here
    return tool.build


def _compile_processes(parallel: int) -> int:
    # About 1 GiB for each compiler at worst; links come on top, one at a time per build.
    by_memory = available_memory() // _GIB // parallel
    return max(1, min(os.cpu_count() or 1, by_memory))


def _output_name(package: str, module_folder: Path) -> str:
    """The name that `go build -o folder/` gives a package's binary."""
    if package == ".":
        go_mod = (module_folder / "go.mod").read_text(encoding="utf-8")
        match = re.search(r"^module (\S+)$", go_mod, re.MULTILINE)
        package = match.group(1) if match else module_folder.name
    parts = package.split("/")
    if len(parts) > 1 and re.fullmatch(r"v[0-9]+", parts[-1]):
        parts.pop()
    return parts[-1]


def _version(text: str) -> tuple[int, ...]:
    """(1, 26, 8) of "go1.26.8" or "1.26"; a pre-release counts as its release."""
    match = re.match(r"(?:go)?([0-9]+(?:\.[0-9]+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def _follow(log: Path, over: Event, step: Callable[[str], None]) -> None:
    """Turn the tail of `go build -v` into a step for people."""
    while not over.wait(_FOLLOW_SECONDS):
        lines = last_lines(log, 1)
        if lines and lines[0].startswith("go: downloading"):
            step(f"fetching {' '.join(lines[0].split()[2:])}")
        elif lines and not lines[0].startswith(("$", "go:")):
            step(f"compiling {lines[0][:60]}")
