"""The archive is what docker, podman and containerd read."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from terrace_local.cluster.scratch_image import image_reference, write_scratch_image


def make(tmp_path: Path, content: bytes = b"program") -> tuple[Path, Path, str]:
    binary = tmp_path / "tool"
    binary.write_bytes(content)
    reference = image_reference(binary, "tool")
    write_scratch_image(binary, tmp_path / "out" / "tool.tar", reference)
    return binary, tmp_path / "out" / "tool.tar", reference


def test_members_refer_to_each_other_by_their_digests(tmp_path: Path) -> None:
    _, archive, reference = make(tmp_path)
    with tarfile.open(archive) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    [manifest] = json.loads(content["manifest.json"])
    assert manifest["RepoTags"] == [reference]
    config = json.loads(content[manifest["Config"]])
    assert manifest["Config"] == hashlib.sha256(content[manifest["Config"]]).hexdigest() + ".json"
    [layer] = manifest["Layers"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content[layer]).hexdigest()}"]
    assert len(config["history"]) == len(manifest["Layers"])
    assert config["config"]["User"] == "65532:65532"
    with tarfile.open(fileobj=io.BytesIO(content[layer])) as tar:
        [member] = tar.getmembers()
        assert (member.name, member.mode, member.uid) == ("tool", 0o755, 0)


def test_the_same_binary_gives_the_same_bytes_and_another_another_name(tmp_path: Path) -> None:
    _, archive, reference = make(tmp_path)
    first = archive.read_bytes()
    archive.unlink()
    assert make(tmp_path)[2] == reference
    assert archive.read_bytes() == first
    assert make(tmp_path, b"other")[2] != reference
    assert reference.startswith("terrace.local/tool:")
    assert len(reference.rpartition(":")[2]) == 16
