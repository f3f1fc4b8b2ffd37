"""Proof 6, its part: a spool's volume that is really full, below a whole guard.

Nothing is sent that could not be closed durably; what runs is closed; room that comes back is used.
Needs root for a volume of its own; ``test_journal_faults`` has the same by limits, for everybody.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import Api
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import QUICK, Books, Said, say, spec, until

VOLUME_BYTES = 2 * 1024 * 1024
BLOCK = 4096


class Volume:
    """A small file system that can be filled to the last block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(BLOCK))
            except OSError:
                return

    def empty(self) -> None:
        self._filler.unlink()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a volume; limits are tested in test_journal_faults")
    path = tmp_path / "volume"
    path.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", path], check=True
    )
    try:
        yield Volume(path)
    finally:
        # Lazily: it goes for good once the last process of the test has closed its files.
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def books(postgres: Postgres, database: str, upstream: FakeUpstream) -> Books:
    return Books(postgres, database, upstream)


@pytest.fixture
def settings(volume: Volume, upstream: FakeUpstream) -> dict[str, Any]:
    return {
        **QUICK, "governance": spec(upstream), "spool_directory": volume.path / "spool",
        "spool_segment_bytes": 64 * 1024,
    }  # fmt: skip


async def until_refused(guard: Api, key: str, volume: Volume) -> Said:
    """Fill what files that were shipped give back, until nothing more can be opened and nothing
    more comes back."""
    refused = 0
    async with asyncio.timeout(120):
        while True:
            volume.fill()
            said = await say(guard, key)
            refused = 0 if said.status == 200 else refused + 1
            if refused == 2:
                return said
            if refused:
                await guard.shipped()
                await asyncio.sleep(0.5)  # its shipper's pause, after which it removes files


async def hold_streams(
    guard: Api, key: str, upstream: FakeUpstream, count: int
) -> tuple[list[asyncio.Task[Said]], asyncio.Event]:
    before, held = len(upstream.calls), asyncio.Event()
    upstream.behaviour = Behaviour(hold=held, hold_after_chunks=1)
    calls = [asyncio.create_task(say(guard, key, stream=True)) for _ in range(count)]
    await until(lambda: len(upstream.calls) == before + count)
    upstream.behaviour = Behaviour()
    return calls, held


async def test_a_full_volume_refuses_before_the_send_and_closes_what_runs(
    make_process: Any, settings: dict[str, Any], volume: Volume, upstream: FakeUpstream,
    books: Books,
) -> None:  # fmt: skip
    guard = await make_process(**settings)
    key = await guard.key()
    calls, held = await hold_streams(guard, key, upstream, 3)
    said = await until_refused(guard, key, volume)
    assert (said.status, said.code) == (503, "authority_unavailable")
    sent = len(upstream.calls)
    refused = await asyncio.gather(*(say(guard, key, stream=n % 2 == 0) for n in range(6)))
    assert {answer.status for answer in refused} == {503}
    assert len(upstream.calls) == sent
    held.set()
    for answer in await asyncio.gather(*calls):
        assert answer.status == 200
        assert "[DONE]" in answer.text
    volume.empty()
    await until(lambda: _passes(guard, key))
    ledger = await books.balance(guard)
    assert {outcome for _, outcome in ledger.values()} == {"ok"}


async def test_a_start_on_a_full_volume_closes_what_was_open(
    make_process: Any, settings: dict[str, Any], volume: Volume, upstream: FakeUpstream,
    books: Books,
) -> None:  # fmt: skip
    guard = await make_process(**settings)
    key = await guard.key()
    calls, held = await hold_streams(guard, key, upstream, 3)
    await until_refused(guard, key, volume)
    await guard.kill()
    await asyncio.gather(*calls, return_exceptions=True)
    held.set()
    volume.fill()
    again = await make_process(**settings)
    volume.empty()
    await until(lambda: _passes(again, key))
    ledger = await books.balance(again)
    assert sorted(outcome for _, outcome in ledger.values()).count("unknown") == 3


async def _passes(guard: Api, key: str) -> bool:
    return (await say(guard, key)).status == 200
