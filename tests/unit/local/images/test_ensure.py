"""Images are built when their inputs change, once, and whatever a dead run left is never used."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from terrace_local.images import IMAGES, BuiltImage, ImageError, ensure_images, load_images
from terrace_local.images.catalogue import BASE_IMAGE, repository_root
from terrace_local.toolchain.places import Places

from .fake_builder import FakeBuilder

Ensure = Callable[..., dict[str, BuiltImage]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small checkout with every declared input."""
    root = tmp_path / "checkout"
    for spec in (BASE_IMAGE, *IMAGES.values()):
        for declared in (spec.dockerfile, *spec.inputs):
            place = root / declared
            if "." in place.name or place.name in ("Dockerfile", "terrace-postgres"):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(f"content of {declared}")
            else:
                place.mkdir(parents=True, exist_ok=True)
                (place / "module.py").write_text(f"# {declared}")
    return root


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(root=tmp_path / "cache")


@pytest.fixture
def builder() -> FakeBuilder:
    return FakeBuilder()


@pytest.fixture
def ensure(root: Path, places: Places, builder: FakeBuilder) -> Ensure:
    def run(names: list[str] | None = None) -> dict[str, BuiltImage]:
        return ensure_images(
            names, root=root, places=places, make_builder=lambda _log, _stop: builder
        )

    return run


def _names(builder: FakeBuilder) -> list[str]:
    return [reference.split("/")[1].split(":")[0] for reference in builder.built]


def test_builds_all_and_then_nothing(ensure: Ensure, builder: FakeBuilder) -> None:
    first = ensure()
    assert set(first) == set(IMAGES)
    assert sorted(_names(builder)) == sorted(["base", *IMAGES])
    for image in first.values():
        assert re.fullmatch(r"[0-9a-f]{16}", image.tag)
        assert image.ref == f"terrace.local/{image.name}:{image.tag}"
        assert image.archive.name == f"{image.name}-{image.tag}.tar"
        assert json.loads(image.archive.read_text())["ref"] == image.ref
    assert builder.trims == len(builder.built), "the builder's storage would grow without end"
    builder.built.clear()
    assert ensure() == first
    assert builder.built == []


def test_one_changed_file_rebuilds_only_its_images(
    ensure: Ensure, builder: FakeBuilder, root: Path
) -> None:
    before = ensure()
    builder.built.clear()
    (root / "services/common/terrace_common/module.py").write_text("# changed")
    after = ensure()
    assert sorted(_names(builder)) == ["gateway", "model-simulator", "quota-sync"]
    assert before["gateway"].tag != after["gateway"].tag
    assert before["translator"] == after["translator"]
    # And back again: the old one is still there.
    builder.built.clear()
    (root / "services/common/terrace_common/module.py").write_text(
        "# services/common/terrace_common"
    )
    assert ensure() == before
    assert builder.built == []


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "services/gateway/Dockerfile").write_text("FROM other"),
        lambda root: (root / "requirements/gateway.lock").write_text("other==1"),
        lambda root: (root / "services/gateway/terrace_gateway/new.py").write_text(""),
        lambda root: (root / "services/gateway/terrace_gateway/module.py").unlink(),
        lambda root: (root / "services/gateway/terrace_gateway/module.py").rename(
            root / "services/gateway/terrace_gateway/renamed.py"
        ),
        lambda root: (root / "services/gateway/terrace_gateway/module.py").chmod(0o755),
    ],
    ids=["dockerfile", "lock", "new file", "file gone", "renamed", "executable"],
)
def test_every_kind_of_change_is_a_new_tag(
    ensure: Ensure, root: Path, change: Callable[[Path], object]
) -> None:
    before = ensure(["gateway"])
    change(root)
    assert ensure(["gateway"])["gateway"].tag != before["gateway"].tag


def test_byte_code_and_undeclared_files_do_not_count(
    ensure: Ensure, builder: FakeBuilder, root: Path
) -> None:
    before = ensure(["gateway"])["gateway"]
    cache = root / "services/gateway/terrace_gateway/__pycache__"
    cache.mkdir()
    (cache / "module.cpython-311.pyc").write_text("x")
    (root / "services/gateway/secret.env").write_text("not declared")
    assert ensure(["gateway"])["gateway"] == before
    assert not any("secret" in name or "pyc" in name for name in builder.contexts[before.ref])


def test_a_new_base_is_a_new_everything(
    ensure: Ensure, builder: FakeBuilder, places: Places
) -> None:
    before = ensure()
    for file in (places.root / "images").glob("base-*"):
        file.unlink()
    builder.built.clear()
    builder.salt = "Debian's packages moved on"
    after = ensure()
    assert sorted(_names(builder)) == sorted(["base", *IMAGES])
    assert all(after[name].tag != before[name].tag for name in IMAGES)


@pytest.mark.parametrize("damage", ["other bytes", "cut", "longer", "no record", "garbage record"])
def test_a_damaged_archive_is_built_again(
    ensure: Ensure, builder: FakeBuilder, damage: str
) -> None:
    image = ensure(["postgres"])["postgres"]
    good = image.archive.read_bytes()
    record = image.archive.with_suffix(".json")
    if damage == "other bytes":
        image.archive.write_bytes(b"x" * len(good))
    elif damage == "cut":
        image.archive.write_bytes(good[:-1])
    elif damage == "longer":
        image.archive.write_bytes(good + b"x")
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text('{"sha256": ')
    builder.built.clear()
    assert ensure(["postgres"])["postgres"] == image
    assert _names(builder) == ["postgres"]
    assert image.archive.read_bytes() == good


def test_a_touched_archive_with_the_same_content_is_kept(
    ensure: Ensure, builder: FakeBuilder
) -> None:
    image = ensure(["postgres"])["postgres"]
    image.archive.write_bytes(image.archive.read_bytes())
    builder.built.clear()
    ensure(["postgres"])
    assert builder.built == []


def test_a_run_that_died_while_writing_leaves_nothing_that_counts(
    ensure: Ensure, builder: FakeBuilder, places: Places
) -> None:
    def die(_part: Path) -> None:
        raise KeyboardInterrupt

    builder.while_writing = die
    with pytest.raises(KeyboardInterrupt):
        ensure(["postgres"])
    assert not list((places.root / "images").glob("*.tar"))
    builder.while_writing = lambda _part: None
    # What kill -9 leaves: no `finally` ran.
    left = places.root / "images" / ".postgres-0123456789abcdef.4194304.part"
    left.write_text("half")
    (places.root / "images" / ".work" / "postgres" / "old").mkdir(parents=True)
    image = ensure(["postgres"])["postgres"]
    assert json.loads(image.archive.read_text())["ref"] == image.ref
    assert not left.exists()
    assert not (places.root / "images" / ".work" / "postgres").exists()


def test_a_full_disk_is_an_error_and_no_archive(
    ensure: Ensure, builder: FakeBuilder, places: Places
) -> None:
    def full(_part: Path) -> None:
        raise OSError(28, "No space left on device")

    ensure(["prometheus"])
    before = set((places.root / "images").glob("*.tar"))
    builder.while_writing = full
    with pytest.raises(ImageError, match=r"image postgres: .*No space left"):
        ensure(["postgres"])
    assert set((places.root / "images").glob("*.tar")) == before
    assert not list((places.root / "images").glob(".*.part"))


def test_two_runs_at_once_build_each_image_once(ensure: Ensure, builder: FakeBuilder) -> None:
    ensure(["prometheus"])
    builder.built.clear()
    both_started = threading.Barrier(2, timeout=20)
    results: list[dict[str, BuiltImage]] = []

    def run() -> None:
        both_started.wait()
        results.append(ensure(["postgres", "secret-bootstrap"]))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(_names(builder)) == ["postgres", "secret-bootstrap"]
    assert results[0] == results[1]


def test_a_damaged_builder_is_reset_once(ensure: Ensure, builder: FakeBuilder) -> None:
    ensure(["prometheus"])
    builder.failures = ["error mounting: layer not known"]
    ensure(["postgres"])
    assert builder.resets == 1


def test_an_honest_failure_is_not_repeated(ensure: Ensure, builder: FakeBuilder) -> None:
    ensure(["prometheus"])
    builder.failures = ["pip: no matching distribution", "must not be reached"]
    with pytest.raises(ImageError, match="no matching distribution"):
        ensure(["postgres"])
    assert builder.resets == 0
    assert builder.failures == ["must not be reached"]


def test_old_archives_go(ensure: Ensure, root: Path, places: Places) -> None:
    for number in range(5):
        (root / "services/gateway/terrace_gateway/module.py").write_text(f"# {number}")
        newest = ensure(["gateway"])["gateway"]
    left = sorted((places.root / "images").glob("gateway-*.tar"))
    assert len(left) == 3
    assert newest.archive in left


def test_unknown_name_lists_the_known(ensure: Ensure) -> None:
    with pytest.raises(ImageError, match=r"no such image: gatway; there are: gateway, "):
        ensure(["gatway"])


def test_missing_input_is_named(ensure: Ensure, root: Path) -> None:
    (root / "requirements/gateway.lock").unlink()
    with pytest.raises(ImageError, match=r"image gateway: its input requirements/gateway\.lock"):
        ensure(["gateway"])


def test_loads_only_what_the_node_has_not(ensure: Ensure, places: Places) -> None:
    images = ensure(["postgres", "prometheus"])
    node: dict[str, Path] = {images["prometheus"].ref: Path("already")}

    def load(archive: Path, ref: str) -> None:
        node[ref] = archive

    arguments = {"loader": load, "has_image": node.__contains__, "places": places}
    assert load_images(images, **arguments) == ["postgres"]
    assert node[images["postgres"].ref] == images["postgres"].archive
    assert node[images["prometheus"].ref] == Path("already")
    assert load_images(images, **arguments) == []


def test_a_corrupt_archive_is_never_loaded(ensure: Ensure, places: Places) -> None:
    image = ensure(["postgres"])["postgres"]
    image.archive.write_bytes(b"x" * image.archive.stat().st_size)
    loaded: list[str] = []
    with pytest.raises(ImageError, match="differs from its checksum"):
        load_images(
            {"postgres": image},
            loader=lambda _archive, ref: loaded.append(ref),
            has_image=lambda _ref: False,
            places=places,
        )
    assert loaded == []
    assert not image.archive.exists()


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_dockerfiles_copy_declared_inputs_only(name: str) -> None:
    spec = IMAGES[name]
    text = (repository_root() / spec.dockerfile).read_text()
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if words[:1] != ["COPY"] or any(word.startswith("--from=") for word in words):
            continue
        sources = [word for word in words[1:-1] if not word.startswith("--")]
        for source in sources:
            assert any(
                declared == source or declared.startswith(f"{source}/") for declared in spec.inputs
            ), f"{spec.dockerfile} copies {source}, which is not among the inputs"
    assert re.search(r"^USER 10001:10001$", text, flags=re.MULTILINE)
    assert re.search(r"^ENTRYPOINT \[", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_declared_inputs_exist(name: str) -> None:
    for declared in (IMAGES[name].dockerfile, *IMAGES[name].inputs):
        assert (repository_root() / declared).exists(), declared
