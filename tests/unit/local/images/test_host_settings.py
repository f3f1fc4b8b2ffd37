"""What a machine's registry settings become for a build, and what stays out."""

import configparser
import stat
from pathlib import Path

import pytest

from terrace_local.images.host_settings import gather

DEBIAN = """Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
"""
FOREIGN = """Types: deb
URIs: https://packages.example/node
Suites: nodistro
Components: main

Types: deb
URIs: https://packages.example/next
Suites: trixie
Components: main

Types: deb
URIs: https://packages.example/own
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/own.gpg
"""
LINES = """# a comment
deb http://mirror.example/debian bookworm main contrib
deb [arch=amd64 signed-by=/etc/apt/keyrings/x.gpg] https://x.example bookworm main
deb https://y.example bookworm stable
deb-src http://mirror.example/debian bookworm main
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    etc = tmp_path / "etc"
    (etc / "apt/sources.list.d").mkdir(parents=True)
    return etc


def test_only_debian_12_goes_in(etc: Path, tmp_path: Path) -> None:
    (etc / "apt/sources.list").write_text("")
    (etc / "apt/sources.list.d/debian.sources").write_text(DEBIAN)
    (etc / "apt/sources.list.d/foreign.sources").write_text(FOREIGN)
    (etc / "apt/sources.list.d/lines.list").write_text(LINES)
    host = gather(tmp_path / "host", etc=etc, environ={})
    text = "\n".join(file.read_text() for file in host.apt_sources)
    assert text.count("mirror.example") == 3
    assert "packages.example" not in text
    assert "x.example" not in text
    assert "y.example" not in text
    assert "deb-src" not in text
    assert host.volumes[tmp_path / "host/sources.list.d"] == "/etc/apt/sources.list.d"


def test_a_machine_that_is_not_debian_12_leaves_the_base_alone(etc: Path, tmp_path: Path) -> None:
    (etc / "apt/sources.list.d/foreign.sources").write_text(FOREIGN)
    host = gather(tmp_path / "host", etc=etc, environ={})
    assert host.apt_sources == ()
    assert "/etc/apt/sources.list" not in host.volumes.values()


def test_pip_settings_come_from_the_environment(etc: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    environ = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "https://user:secret@index.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://a.example https://b.example",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_TARGET": "/must/not/pass",
        "SSL_CERT_FILE": str(bundle),
    }
    host = gather(tmp_path / "host", etc=etc, environ=environ)
    assert host.pip is not None
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(host.pip)
    settings = dict(parser["global"])
    assert settings["index-url"] == environ["PIP_INDEX_URL"]
    assert settings["extra-index-url"].split() == ["https://a.example", "https://b.example"]
    assert settings["cert"] == host.volumes[bundle]
    assert host.volumes[wheels] == str(wheels)
    assert "target" not in settings
    assert stat.S_IMODE(host.pip.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "host").stat().st_mode) == 0o700


def test_uv_index_stands_in_for_pip(etc: Path, tmp_path: Path) -> None:
    environ = {"PIP_CONFIG_FILE": "/dev/null", "UV_DEFAULT_INDEX": "https://uv.example/simple"}
    host = gather(tmp_path / "host", etc=etc, environ=environ)
    assert host.pip is not None
    assert "https://uv.example/simple" in host.pip.read_text()
