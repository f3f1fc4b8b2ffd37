"""How this machine reaches package registries, given to builds without leaving a trace in images.

Debian's mirrors, pip's index, proxies and the CA bundle differ from machine to machine. They come
in as files that are mounted for the length of the build.
"""

import configparser
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SUITES = frozenset({"bookworm", "bookworm-updates", "bookworm-security"})
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_PIP_KEYS = frozenset(
    {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout",
     "retries"}
)  # fmt: skip
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?\S+\s+(?P<suite>\S+)\s+(?P<components>.+)$")


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Files on this machine, made for one build."""

    apt_sources: Sequence[Path] = ()
    """Empty: this machine has none for Debian 12; then the base's own are used."""
    apt_options: Path | None = None
    pip: Path | None = None
    volumes: Mapping[Path, str] = field(default_factory=dict)
    """Host path -> path in the build, read-only."""


def gather(
    folder: Path, *, etc: Path = Path("/etc"), environ: Mapping[str, str] | None = None
) -> HostSettings:
    """Writes what builds need into `folder` (private; it may hold credentials)."""
    environ = os.environ if environ is None else environ
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    volumes: dict[Path, str] = {}
    sources = _apt_sources(etc / "apt", folder / "sources.list.d")
    if sources:
        volumes[folder / "sources.list.d"] = "/etc/apt/sources.list.d"
        empty = folder / "sources.list"
        empty.write_text("", encoding="utf-8")
        volumes[empty] = "/etc/apt/sources.list"
    options = _apt_options(folder / "apt.conf")
    if options:
        volumes[options] = "/etc/apt/apt.conf.d/00build-host"
    bundle = next(
        (
            Path(environ[name])
            for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
            if environ.get(name) and Path(environ[name]).is_file()
        ),
        _CA_BUNDLE if _CA_BUNDLE.is_file() else None,
    )
    pip = _pip_settings(environ)
    if bundle:
        inside = "/run/build-host/ca.pem"
        volumes[bundle.resolve()] = inside
        pip["cert"] = inside
    for place in pip.get("find-links", "").split():
        if Path(place).is_dir():
            volumes[Path(place)] = place
    return HostSettings(
        apt_sources=tuple(sources),
        apt_options=options,
        pip=_write_pip(folder / "pip.conf", pip),
        volumes=volumes,
    )


def _apt_sources(apt: Path, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    stanzas: list[str] = []
    for file in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        try:
            text = file.read_text(encoding="utf-8")
        except OSError:
            continue
        if file.suffix == ".sources":
            stanzas += [part for part in re.split(r"\n\s*\n", text) if _is_debian_stanza(part)]
        elif file.suffix == ".list":
            lines += [line for line in text.splitlines() if _is_debian_line(line)]
    written: list[Path] = []
    for name, parts, glue in (("debian.sources", stanzas, "\n\n"), ("debian.list", lines, "\n")):
        if parts:
            target = folder / name
            target.write_text(glue.join(part.strip() for part in parts) + "\n", encoding="utf-8")
            written.append(target)
    return written


def _is_debian_line(line: str) -> bool:
    match = _ONE_LINE.match(line.strip())
    return bool(
        match
        and match["suite"] in SUITES
        and "main" in match["components"].split()
        and ("signed-by" not in line or "debian-archive" in line)
    )


def _is_debian_stanza(stanza: str) -> bool:
    fields = dict(re.findall(r"^(\w[\w-]*):[ \t]*(.*)$", stanza, flags=re.MULTILINE))
    suites = fields.get("Suites", "").split()
    return (
        "deb" in fields.get("Types", "").split()
        and bool(suites)
        and set(suites) <= SUITES
        and "main" in fields.get("Components", "").split()
        and fields.get("Enabled", "yes").lower() != "no"
        and ("Signed-By" not in fields or "debian-archive" in fields["Signed-By"])
    )


def _apt_options(target: Path) -> Path | None:
    if shutil.which("apt-config") is None:
        return None
    dumped = subprocess.run(
        ["apt-config", "dump", "--no-empty", "--format", '%f "%v";%n', "Acquire"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    wanted = re.compile(r'^Acquire::(https?|ftp)::(Proxy|CAInfo|Verify-Peer|Verify-Host)\b.*";$')
    kept = [line for line in dumped.splitlines() if wanted.match(line)]
    kept.append('Acquire::Retries "3";')
    target.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return target


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    files = [environ["PIP_CONFIG_FILE"]] if environ.get("PIP_CONFIG_FILE") else list(_PIP_FILES)
    try:
        parser.read([Path(file).expanduser() for file in files], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        parser = configparser.ConfigParser(interpolation=None)
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found |= {key: value for key, value in parser.items(section) if key in _PIP_KEYS}
    index = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    if index:
        found["index-url"] = index
    for key in _PIP_KEYS:
        value = environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            found[key] = value
    return found


def _write_pip(target: Path, settings: Mapping[str, str]) -> Path:
    target.touch(mode=0o600)
    lines = ["[global]", "disable-pip-version-check = true", "root-user-action = ignore"]
    for key, value in sorted(settings.items()):
        lines.append(f"{key} = " + "\n    ".join(value.split()))
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target
