"""Official releases: taken only as the publisher's checksum says, and as it said the first time."""

import hashlib
import json
import socket
import threading
from typing import Any

import pytest

from terrace_local.toolchain import ToolchainError
from terrace_local.toolchain import download as download_module
from terrace_local.toolchain.checksums import parse_checksum
from terrace_local.toolchain.places import Places

SCRIPT = b"#!/bin/sh\necho official\n"


def test_plain_file_is_downloaded_verified_and_recorded(
    make: Any, site: Any, published: dict[str, Any], places: Places
) -> None:
    site.publish("hello-1.2.3", SCRIPT)
    toolchain = make(published)
    assert toolchain.path("hello").read_bytes() == SCRIPT
    assert toolchain.path("hello").stat().st_mode & 0o777 == 0o755
    assert toolchain.binaries["hello"].source == "downloaded"
    recorded = json.loads(places.checksums.read_text())
    assert recorded == {f"{site.url}/hello-1.2.3": hashlib.sha256(SCRIPT).hexdigest()}
    make(published)
    assert site.gets("hello-1.2.3") == 1


def test_members_are_taken_out_of_an_archive_shared_by_two_tools(
    make: Any, site: Any, hello: dict[str, Any], make_tar: Any
) -> None:
    members = {"./rel/hello": SCRIPT, "rel/more": b"#!/bin/sh\n", "rel/../../escape": b"x"}
    site.publish("both.tar.gz", make_tar(members))
    common = {
        "url": site.url + "/both.tar.gz",
        "checksum_url": site.url + "/both.tar.gz.sha256sum",
        "checksum_format": "sha256sum",
    }
    more = {
        "name": "more",
        "version": "1",
        "since_stage": 1,
        "binaries": ["more"],
        "download": common | {"members": {"more": "rel/more"}},
    }
    toolchain = make(hello | {"download": common | {"members": {"hello": "rel/hello"}}}, more)
    assert toolchain.path("hello").read_bytes() == SCRIPT
    assert toolchain.binaries["more"].source == "downloaded"
    assert site.gets("both.tar.gz") == 1


def test_archive_without_the_member_is_reported_and_the_tool_is_built(
    make: Any, site: Any, published: dict[str, Any], make_tar: Any, recorder: Any
) -> None:
    site.publish("hello-1.2.3", make_tar({"other": b""}))
    published["download"]["members"] = {"hello": "bin/hello"}
    assert make(published).binaries["hello"].source == "built"
    assert any("has no hello" in end for end in recorder.ends)


def test_wrong_checksum_is_reported_and_the_tool_is_built(
    make: Any, site: Any, published: dict[str, Any], recorder: Any, places: Places
) -> None:
    site.publish("hello-1.2.3", SCRIPT, checksum="0" * 64)
    toolchain = make(published)
    assert toolchain.binaries["hello"].source == "built"
    assert any("wrong checksum" in end and "0" * 64 in end for end in recorder.ends)
    assert not places.checksums.exists()


def test_wrong_checksum_is_an_error_where_nothing_else_is_allowed(
    make: Any, site: Any, published: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "download")
    site.publish("hello-1.2.3", SCRIPT, checksum="0" * 64)
    with pytest.raises(ToolchainError, match="wrong checksum") as caught:
        make(published)
    assert "hello" in str(caught.value)


def test_release_that_changed_since_its_first_use_is_refused(
    make: Any,
    site: Any,
    published: dict[str, Any],
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "download")
    site.publish("hello-1.2.3", SCRIPT)
    entry = make(published).binaries["hello"].file
    entry.unlink()
    site.publish("hello-1.2.3", b"#!/bin/sh\necho changed\n")
    with pytest.raises(ToolchainError, match="has changed since it was first used") as caught:
        make(published)
    assert hashlib.sha256(SCRIPT).hexdigest() in str(caught.value)
    assert str(places.checksums) in str(caught.value)
    assert site.gets("hello-1.2.3") == 1


def test_damaged_record_of_checksums_does_not_mean_trust_anew(
    make: Any, site: Any, published: dict[str, Any], places: Places, recorder: Any
) -> None:
    site.publish("hello-1.2.3", SCRIPT)
    places.checksums.parent.mkdir(parents=True)
    places.checksums.write_text('{"half')
    assert make(published).binaries["hello"].source == "built"
    assert any("is damaged" in end for end in recorder.ends)
    assert places.checksums.read_text() == '{"half'


def test_missing_release_is_reported_and_the_tool_is_built(
    make: Any, site: Any, published: dict[str, Any], recorder: Any
) -> None:
    assert make(published).binaries["hello"].source == "built"
    assert any("answered 404" in end for end in recorder.ends)


def test_host_that_refuses_connections_is_named_once_and_skipped(
    make: Any, published: dict[str, Any], recorder: Any
) -> None:
    with socket.socket() as closed:  # nobody else gets the port, and nobody listens there
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        published["download"] |= {"url": f"{url}/a", "checksum_url": f"{url}/a.sha256sum"}
        more = published | {"name": "more", "binaries": ["more"], "build": None}
        more["download"] = published["download"] | {"url": f"{url}/b"}
        with pytest.raises(ToolchainError, match=r"more: download: .* can't be reached"):
            make(published, more)
    assert len([note for note in recorder.notes if "can't be reached" in note]) == 1


def test_host_that_never_answers_is_given_up_after_one_try(
    make: Any, published: dict[str, Any], recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "_PROBE_SECONDS", 0.2)
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0.05)
        over = threading.Event()

        def accept() -> None:
            while True:
                try:
                    connections.append(silent.accept()[0])
                except TimeoutError:  # at the end too: whoever came was taken
                    if over.is_set():
                        return

        thread = threading.Thread(target=accept)
        thread.start()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        published["download"] |= {"url": f"{url}/a", "checksum_url": f"{url}/a.sha256sum"}
        more = published | {"name": "more", "binaries": ["more"]}
        more["build"] = {"module": "tiny", "packages": {"more": "./more"}}
        more["download"] = published["download"] | {"url": f"{url}/b"}
        monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "download")
        with pytest.raises(ToolchainError, match="no answer in"):
            make(published, more)
        over.set()
        thread.join()
    for connection in connections:
        connection.close()
    assert len(connections) == 1
    assert len([note for note in recorder.notes if "can't be reached" in note]) == 1


def test_redirect_to_plain_http_is_refused(
    make: Any, site: Any, published: dict[str, Any], recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish("hello-1.2.3", SCRIPT)
    monkeypatch.setattr(download_module, "is_trustworthy", lambda url: not url.endswith("sum"))
    assert make(published).binaries["hello"].source == "built"
    assert any("is not https" in end for end in recorder.ends)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("bare", "A" * 64 + "\n"),
        ("sha256sum", f"{'b' * 64}  other\n{'a' * 64}  file.tgz\n"),
        ("sha256sum", f"{'a' * 64} *file.tgz"),
        ("sha256sum", f"{'a' * 64}  ./release/file.tgz\r\n"),
    ],
)
def test_checksum_files_as_publishers_write_them(form: Any, text: str) -> None:
    assert parse_checksum(text, form, "file.tgz") == "a" * 64


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("bare", ""),
        ("bare", "<html>not found</html>"),
        ("bare", f"{'a' * 64}  file.tgz"),
        ("sha256sum", ""),
        ("sha256sum", f"{'a' * 63}  file.tgz"),
        ("sha256sum", f"{'a' * 64}  file.tgz.asc"),
        ("sha256sum", "a" * 64),
    ],
)
def test_what_is_no_checksum_for_the_file_is_refused(form: Any, text: str) -> None:
    with pytest.raises(ValueError, match="checksum file"):
        parse_checksum(text, form, "file.tgz")
