"""A journal on a disk that tests hold up and break, and logs without one."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.journal_records import close_record, open_record

from terrace_gateway.calls.ports import (
    Amounts,
    Caller,
    Charge,
    CloseRecord,
    Hold,
    OpenRecord,
    Usage,
)
from terrace_gateway.clock import Clock
from terrace_gateway.spool.framing import Frame, scan
from terrace_gateway.spool.group_commit import MakeSyncer
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.records import entry_hash
from terrace_gateway.spool.segments import SpoolDirectory
from terrace_gateway.spool.spool_log import SpoolLog, spool_directory
from terrace_gateway.spool.syncing import KernelSyncer, Synced, Syncer, ThreadSyncer

__all__ = [
    "AT",
    "BOTH",
    "Disk",
    "Rig",
    "assert_chain_is_whole",
    "close_record",
    "closed",
    "frames_of",
    "new_log",
    "open_record",
    "opened",
]
AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


def opened(attempt_id: str, charges: tuple[Charge, ...] = (), **changes: Any) -> OpenRecord:
    values: dict[str, Any] = {
        "attempt_id": attempt_id, "request_id": "req", "trace_id": "t" * 32, "opened_at": AT,
        "caller": Caller("key_1", "search"), "surface": "chat", "model": "m", "deployment": "d",
        "provider": "p", "price_version": "v", "policy_version": 1,
        "reserved": Amounts(10, 20, 900), "hold": Hold(attempt_id, 1, charges),
        "hard_limit_seconds": 600,
    }  # fmt: skip
    return OpenRecord(**(values | changes))


def closed(attempt_id: str, charges: tuple[Charge, ...] = (), **changes: Any) -> CloseRecord:
    values: dict[str, Any] = {
        "attempt_id": attempt_id, "kind": "attempt", "outcome": "ok", "usage": Usage(1, 2),
        "usage_source": "response", "amount_micro_usd": 5, "charges": charges, "latency_ms": 3,
    }  # fmt: skip
    return CloseRecord(**(values | changes))


def new_log(path: Path, **options: Any) -> tuple[SpoolDirectory, SpoolLog]:
    directory = spool_directory(path)
    return directory, SpoolLog(directory, replica="r", **options)


def frames_of(path: Path) -> list[Frame]:
    """All frames in the directory, in order, as a fresh process reads them."""
    return [
        frame
        for file in sorted(path.glob("*.spool"))
        for _, frame in scan(file.read_bytes()).frames
    ]


def assert_chain_is_whole(frames: list[Frame]) -> None:
    entries = [frame for frame in frames if frame.is_entry]
    previous = None
    for frame in entries:
        assert entry_hash(frame.previous, frame.body) == frame.hash
        if previous is not None:
            assert (frame.seq, frame.previous) == (previous.seq + 1, previous.hash)
        previous = frame


def kernel(loop: asyncio.AbstractEventLoop, executor: Executor, probe: int) -> Syncer:
    return KernelSyncer(loop, probe)


def thread(loop: asyncio.AbstractEventLoop, executor: Executor, probe: int) -> Syncer:
    return ThreadSyncer(loop, executor)


BOTH = pytest.mark.parametrize("make_syncer", [kernel, thread], ids=["kernel", "thread"])


class Disk(Syncer):
    """A real syncer behind a gate, that can be told to fail."""

    def __init__(self, real: Syncer) -> None:
        self._real = real
        self.error: OSError | None = None
        self.asked = 0
        self.answered = 0
        self.held: list[Callable[[], None]] | None = None

    def sync(self, fd: int, synced: Synced) -> None:
        self.asked += 1
        error = self.error

        def told(answer: OSError | None) -> None:
            self.answered += 1
            synced(answer if error is None else error)

        def go() -> None:
            self._real.sync(fd, told)

        if self.held is None:
            go()
        else:
            self.held.append(go)

    def close(self) -> None:
        self._real.close()


class Rig:
    """A journal on a disk of the test."""

    def __init__(self, folder: Path, make_syncer: MakeSyncer, **settings: int) -> None:
        self.folder = folder
        self.disk: Disk | None = None

        def made(loop: asyncio.AbstractEventLoop, executor: Executor, probe: int) -> Syncer:
            self.disk = Disk(make_syncer(loop, executor, probe))
            return self.disk

        self.journal = SpoolJournal(
            folder, replica="r", clock=Clock(), make_syncer=made, observer=self, **settings
        )
        self.lost: list[int] = []
        self.refusals = 0
        self.journal.start()

    def group(self, records: int, size: int, seconds: float) -> None:
        """A ``SpoolObserver`` needs it."""

    def refused(self) -> None:
        self.refusals += 1

    def dropped(self, decisions: int) -> None:
        self.lost.append(decisions)

    def on_disk(self, record: OpenRecord) -> bool:
        data = b"".join(path.read_bytes() for path in self.folder.glob("*.spool"))
        return record.attempt_id.encode() in data
