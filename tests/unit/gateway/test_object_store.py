"""A directory of objects: who comes first is stored, whoever else stores the same at the time."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from terrace_gateway.ledger.object_store import DirectoryObjects

KEY = "anchors/w-1/7.json"
REAL_LINK = os.link


@pytest.mark.parametrize("before", [True, False])
def test_another_put_in_the_middle_of_one_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """As one of another thread, or of another container with the same process id."""
    objects = DirectoryObjects(tmp_path)
    second: list[bool] = []

    def link(part: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", REAL_LINK)
        if before:
            second.append(DirectoryObjects(tmp_path).put(KEY, b"of the other"))
        REAL_LINK(part, target)
        if not before:
            second.append(DirectoryObjects(tmp_path).put(KEY, b"of the other"))

    monkeypatch.setattr(os, "link", link)
    first = objects.put(KEY, b"of the one")
    assert [first, *second] == [not before, before]
    assert objects.get(KEY) == (b"of the other" if before else b"of the one")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["7.json"]


def test_of_many_at_once_one_stores_each_and_no_other_fails(tmp_path: Path) -> None:
    objects, threads, keys = DirectoryObjects(tmp_path), 8, 40
    ready = threading.Barrier(threads, timeout=60)

    def put_all(number: int) -> list[bool]:
        found = []
        for key in range(keys):
            ready.wait()
            found.append(objects.put(f"a/{key}", f"{number}".encode() * 1000))
        return found

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(put_all, range(threads)))
    for key in range(keys):
        (winner,) = [number for number in range(threads) if answers[number][key]]
        assert objects.get(f"a/{key}") == f"{winner}".encode() * 1000
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == keys
