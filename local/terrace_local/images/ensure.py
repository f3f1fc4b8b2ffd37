"""Makes images available as archives: from the cache, or built; and loads them into a node."""

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from terrace_local.images.archive_store import ArchiveStore
from terrace_local.images.buildah import Buildah
from terrace_local.images.builder import BuildRequest, ImageBuilder
from terrace_local.images.catalogue import (
    BASE,
    BASE_IMAGE,
    IMAGES,
    REGISTRY,
    ImageSpec,
    repository_root,
)
from terrace_local.images.context import input_digest, lay_out
from terrace_local.images.errors import ImageError
from terrace_local.images.host_settings import HostSettings, gather
from terrace_local.images.root import debian_root
from terrace_local.toolchain.places import Places
from terrace_local.toolchain.progress import Progress, Silent

_TAG_DIGITS = 16
MakeBuilder = Callable[[Path, Event], ImageBuilder]
"""A builder that logs to the given file and ends when the event is set."""


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image that lies ready as an archive."""

    name: str
    ref: str
    tag: str
    """16 hex digits of the SHA-256 over everything that went in."""
    archive: Path


def ensure_images(
    names: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    build_dir: Path | None = None,
    root: Path | None = None,
    places: Places | None = None,
    make_builder: MakeBuilder | None = None,
    stop: Event | None = None,
) -> dict[str, BuiltImage]:
    """The named images (default: all), built where the cache has none for their inputs.

    Safe against a second run at the same time and against being killed: what is half done is
    thrown away by the next run. Raises ImageError; Stopped when `stop` is set.
    """
    wanted = list(IMAGES if names is None else names)
    if unknown := [name for name in wanted if name not in IMAGES]:
        raise ImageError(f"no such image: {', '.join(unknown)}; there are: {', '.join(IMAGES)}")
    run = _Run(
        progress=progress or Silent(),
        places=places or Places.from_environment(),
        root=root or repository_root(),
        build_dir=build_dir,
        make_builder=make_builder,
        stop=stop or Event(),
    )
    return run.ensure(wanted)


def load_images(
    images: Mapping[str, BuiltImage],
    *,
    loader: Callable[[Path, str], None],
    has_image: Callable[[str], bool],
    progress: Progress | None = None,
    places: Places | None = None,
) -> list[str]:
    """Loads into the node what it has not; returns those names.

    An archive is read in full and compared with its checksum first. Raises ImageError for one
    that changed on disk; it is removed, so that the next `ensure_images` builds it again.
    """
    progress = progress or Silent()
    store = ArchiveStore(_archives(places or Places.from_environment()))
    missing = [image for image in images.values() if not has_image(image.ref)]
    for image in missing:
        progress.begin(f"image {image.name}", "load into the node")
        if store.digest(image.name, image.tag, read_all=True) is None:
            store.discard(image.name, image.tag)
            raise ImageError(
                f"{image.archive} differs from its checksum and was removed; run the same command "
                "again to build it anew"
            )
        loader(image.archive, image.ref)
        progress.end(f"image {image.name}", "loaded")
    return [image.name for image in missing]


def _archives(places: Places) -> Path:
    return places.root / "images"


class _Run:
    def __init__(
        self,
        *,
        progress: Progress,
        places: Places,
        root: Path,
        build_dir: Path | None,
        make_builder: MakeBuilder | None,
        stop: Event,
    ) -> None:
        self._progress = progress
        self._root = root
        self._stop = stop
        self._folder = _archives(places)
        self._work = build_dir or self._folder / ".work"
        self._logs = places.root / "log" / "images"
        self._make_builder = make_builder or self._buildah
        self._store = ArchiveStore(self._folder)

    def ensure(self, names: list[str]) -> dict[str, BuiltImage]:
        base, base_digest = self._base()
        done: dict[str, BuiltImage] = {}
        for position, name in enumerate(names):
            self._progress.remaining(len(names) - position)
            spec = IMAGES[name]
            digest = input_digest(spec, self._root, base=base_digest)
            done[name], _ = self._one(
                spec, digest, lambda builder, spec=spec, digest=digest: self._build_on(
                    builder, spec, digest, base
                )
            )  # fmt: skip
        self._progress.remaining(0)
        return done

    def _base(self) -> tuple[BuiltImage, str]:
        # Its tag says what it was made by; what came out differs with Debian's updates, so the
        # images on top take its archive's digest as their input.
        digest = input_digest(BASE_IMAGE, self._root, base="")
        return self._one(BASE_IMAGE, digest, lambda builder: self._build_base(builder, digest))

    def _one(
        self, spec: ImageSpec, digest: str, build: Callable[[ImageBuilder], None]
    ) -> tuple[BuiltImage, str]:
        tag = digest[:_TAG_DIGITS]
        image = BuiltImage(
            name=spec.name, ref=_reference(spec.name, tag), tag=tag,
            archive=self._store.path(spec.name, tag),
        )  # fmt: skip
        found = self._store.digest(spec.name, tag)
        if found:
            return image, found
        task = f"image {spec.name}"
        self._progress.begin(task, "wait for its lock")
        outcome = "failed"
        try:
            with (
                _said_for_people(spec.name),
                self._store.lock(spec.name, waiting=lambda pid: self._waits(spec.name, pid)),
            ):
                found = self._store.digest(spec.name, tag, read_all=True)
                if found:
                    outcome = "built by another run"
                    return image, found
                found = self._make(spec, image, build)
                outcome = "built"
                return image, found
        finally:
            self._progress.end(task, outcome)

    def _make(
        self, spec: ImageSpec, image: BuiltImage, build: Callable[[ImageBuilder], None]
    ) -> str:
        log = self._logs / f"{spec.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        builder = self._make_builder(log, self._stop)
        self._progress.step(f"image {spec.name}", "build")
        try:
            build(builder)
        except ImageError as failed:
            # A storage that a kill left damaged fails in ways of its own; an honest failure
            # (a package that can't be had) fails again, with its own message.
            if not _looks_like_damage(str(failed)):
                raise
            self._progress.note(f"image {spec.name}: the builder's storage is damaged; once more")
            builder.reset()
            build(builder)
        self._progress.step(f"image {spec.name}", "write the archive")
        part = self._store.part(spec.name, image.tag)
        try:
            builder.write_archive(image.ref, part)
            digest = self._store.publish(part, spec.name, image.tag)
        finally:
            part.unlink(missing_ok=True)
        builder.trim()
        return digest

    def _build_base(self, builder: ImageBuilder, digest: str) -> None:
        with self._workspace(BASE) as (folder, host):
            log = self._logs / f"{BASE}.log"
            self._progress.step(f"image {BASE}", "Debian 12 from a registry, else its packages")
            root = debian_root(builder, host, folder, log=log, stop=self._stop)
            context = folder / "context"
            builder.build(
                BuildRequest(
                    reference=_reference(BASE, digest[:_TAG_DIGITS]),
                    dockerfile=lay_out(BASE_IMAGE, self._root, context),
                    context=context,
                    arguments={"ROOT": root},
                    labels=_labels(BASE_IMAGE, digest),
                    volumes=host.volumes,
                    squash=True,
                )
            )

    def _build_on(
        self, builder: ImageBuilder, spec: ImageSpec, digest: str, base: BuiltImage
    ) -> None:
        with self._workspace(spec.name) as (folder, host):
            builder.take_in(base.archive, base.ref)
            context = folder / "context"
            builder.build(
                BuildRequest(
                    reference=_reference(spec.name, digest[:_TAG_DIGITS]),
                    dockerfile=lay_out(spec, self._root, context),
                    context=context,
                    arguments={"BASE": base.ref, **spec.arguments},
                    labels={
                        **_labels(spec, digest), "org.opencontainers.image.base.name": base.ref
                    },
                    secrets={"pip": host.pip} if host.pip else {},
                    volumes=host.volumes,
                )
            )  # fmt: skip

    @contextmanager
    def _workspace(self, name: str) -> Generator[tuple[Path, HostSettings]]:
        # The image's lock is held, so what lies here is of a run that died.
        place = self._work / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, parents=True)
        folder = Path(tempfile.mkdtemp(dir=place))
        try:
            yield folder, gather(folder / "host")
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _buildah(self, log: Path, stop: Event) -> ImageBuilder:
        return Buildah(self._folder / ".storage", log=log, stop=stop)

    def _waits(self, name: str, pid: str) -> None:
        self._progress.note(f"image {name}: waiting for pid {pid}, which builds it")


@contextmanager
def _said_for_people(name: str) -> Generator[None]:
    try:
        yield
    except OSError as failed:
        raise ImageError(f"image {name}: {failed}") from failed


def _reference(name: str, tag: str) -> str:
    return f"{REGISTRY}/{name}:{tag}"


def _labels(spec: ImageSpec, digest: str) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"terrace-{spec.name}",
        "org.opencontainers.image.version": spec.version,
        "org.opencontainers.image.licenses": spec.licenses,
        "dev.terrace.source-digest": f"sha256:{digest}",
    }


def _looks_like_damage(message: str) -> bool:
    return any(
        sign in message
        for sign in (
            "layer not known", "image not known", "no such file or directory",
            "error mounting", "error reading blob", "invalid character", "unexpected EOF",
            "input/output error", "structure needs cleaning", "stale file handle",
        )
    )  # fmt: skip
