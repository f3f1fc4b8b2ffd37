"""The root under the base image: a registry's, else one bootstrapped from packages."""

import hashlib
import json
import os
import tarfile
from pathlib import Path
from threading import Event

import pytest

from terrace_local.images.errors import ImageError
from terrace_local.images.host_settings import HostSettings
from terrace_local.images.root import LOCAL_NAME, REGISTRY_IMAGE, debian_root
from terrace_local.images.root_archive import write_root_archive

from .fake_builder import FakeBuilder


class Offline(FakeBuilder):
    """No registry in reach."""

    roots: list[bytes]

    def pull(self, source: str, *, seconds: float) -> str | None:
        del source, seconds
        return None

    def take_in_root(self, root_tar: Path, reference: str) -> None:
        assert reference == LOCAL_NAME
        self.roots = [root_tar.read_bytes()]


@pytest.fixture
def mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that records its arguments; a file `fail` beside it makes it fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "mmdebstrap"
    program.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" >{folder}/arguments\n'
        f"if [ -e {folder}/fail ]; then echo 'E: unable to fetch'; exit 25; fi\n"
        'for word; do case $word in *.tar) printf root >"$word" ;; esac; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def _root(builder: FakeBuilder, tmp_path: Path, host: HostSettings) -> str:
    log = tmp_path / "base.log"
    return debian_root(builder, host, tmp_path, log=log, stop=Event())


def test_a_registry_is_asked_first(tmp_path: Path, mmdebstrap: Path) -> None:
    assert _root(FakeBuilder(), tmp_path, HostSettings()) == REGISTRY_IMAGE
    assert not (mmdebstrap / "arguments").exists()


def test_bootstraps_with_the_sources_of_this_machine(tmp_path: Path, mmdebstrap: Path) -> None:
    sources = tmp_path / "debian.sources"
    sources.write_text("Types: deb\n")
    builder = Offline()
    assert _root(builder, tmp_path, HostSettings(apt_sources=(sources,))) == LOCAL_NAME
    assert builder.roots == [b"root"]
    arguments = (mmdebstrap / "arguments").read_text().splitlines()
    assert "--variant=minbase" in arguments
    assert arguments[-3:] == ["bookworm", str(tmp_path / "root.tar"), str(sources)]
    assert not (tmp_path / "root.tar").exists()


def test_neither_registry_nor_packages(tmp_path: Path, mmdebstrap: Path) -> None:
    (mmdebstrap / "fail").touch()
    with pytest.raises(ImageError, match=r"no Debian 12 to build on: .*(?s:.)*unable to fetch"):
        _root(Offline(), tmp_path, HostSettings())
    assert not (tmp_path / "root.tar").exists()


def test_root_archive_is_a_docker_archive_of_one_layer(tmp_path: Path) -> None:
    layer = tmp_path / "root.tar"
    with tarfile.open(layer, "w") as out:
        out.add(__file__, arcname="etc/some-file")
    archive = tmp_path / "image.tar"
    write_root_archive(layer, archive, "terrace.local/x:y")
    with tarfile.open(archive) as opened:
        (manifest,) = json.load(opened.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(opened.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        stored = opened.extractfile(manifest["Layers"][0]).read()  # type: ignore[union-attr]
    assert manifest["RepoTags"] == ["terrace.local/x:y"]
    assert stored == layer.read_bytes()
    digest = hashlib.sha256(stored).hexdigest()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    # buildah can't commit on an image with fewer history entries than layers.
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"])
