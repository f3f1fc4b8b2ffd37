"""Group commits of one log: what is appended while a sync runs shares the next one.

The event loop applies and writes a group itself, into room that is there, and the kernel syncs
it. A group that makes, grows or deletes files is done in a thread. A volume that lets a group wait
for too long is given up.
"""

import asyncio
import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import structlog

from terrace_gateway.calls.ports import AuthorityUnavailableError, SpoolFullError
from terrace_gateway.crash_points import reach
from terrace_gateway.spool.spool_log import SpoolLog
from terrace_gateway.spool.syncing import Syncer, best_syncer

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""Between looks at the group that runs. Its age is counted in looks: a process that was paused, or
had no turn, has looked once all the same."""
LATE_LOOKS = 3
"""So old a group says that the volume does not answer now."""
LAST_LOOKS = 15
"""So old a group is given up, and the volume with it."""

Apply = Callable[[SpoolLog], object]
MakeSyncer = Callable[[asyncio.AbstractEventLoop, Executor, int], Syncer]


class SpoolBrokenError(AuthorityUnavailableError):
    """The volume failed a write or a sync. Nothing here can be trusted before a restart."""


class SpoolObserver(Protocol):
    """What is told about the spool, for metrics; called in the event loop or the spool's thread."""

    def group(self, records: int, size: int, seconds: float) -> None:
        """One group commit: its records, bytes and the time of its write and sync."""
        ...

    def refused(self) -> None:
        """An open was refused for want of room."""
        ...

    def dropped(self, decisions: int) -> None:
        """Decisions that could not be recorded, or of which that is not known."""
        ...


@dataclass(slots=True)
class _Item:
    apply: Apply
    done: asyncio.Future[None] | None
    """``None``: nobody waits."""
    decisions: int = 0
    """How many are lost with it."""
    files: bool = False
    """Whether it makes or deletes files."""


@dataclass(slots=True)
class _Group:
    """What one sync makes durable. ``size`` in bytes."""

    items: list[_Item]
    began: float
    errors: list[Exception | None]
    size: int = 0
    looks: int = 0
    """How often it was looked at while it ran."""


class GroupCommits:
    """The one who touches the log, from one event loop."""

    def __init__(
        self,
        spool: SpoolLog,
        *,
        probe: int,
        observer: SpoolObserver | None,
        grown: asyncio.Event,
        make_syncer: MakeSyncer = best_syncer,
    ) -> None:
        """``probe``: a descriptor on the volume. ``grown`` is set after every group."""
        self._log = spool
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._syncer = make_syncer(self._loop, self._thread, probe)
        self._items: list[_Item] = []
        self._group: _Group | None = None
        """The one that runs."""
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        self._running = True
        self._idle = asyncio.Event()
        self._idle.set()
        self._grown = grown
        self.broken: str | None = None
        """Why nothing is accepted any more; ``None``: it works."""
        self.given_up = False
        """A group was given up: the volume may have its files in use until the process ends."""

    @property
    def answers(self) -> bool:
        """The volume answers in time."""
        group = self._group
        return self.broken is None and (group is None or group.looks < LATE_LOOKS)

    def append(self, apply: Apply, *, files: bool = False) -> asyncio.Future[None]:
        """Done when it is durable, also if nobody waits for that.

        Its exception is what ``apply`` raises, or ``SpoolBrokenError``. ``files``: it makes or
        deletes files.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self._put(_Item(apply, done, files=files))
        return done

    def append_soon(self, apply: Apply, *, decisions: int) -> None:
        """Nobody waits; the observer hears of so many ``decisions`` if it could not be recorded."""
        self._put(_Item(apply, None, decisions))

    async def stop(self) -> None:
        """Commit what was appended. A later append is refused."""
        self._running = False
        await self._idle.wait()
        self._looking.cancel()
        self._syncer.close()
        self._thread.shutdown(wait=not self.given_up)

    def _put(self, item: _Item) -> None:
        if not self._running:
            if item.done is not None:
                item.done.set_exception(SpoolBrokenError("the journal is not running"))
            self._dropped(item.decisions)
            return
        self._items.append(item)
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._turn)  # with all that is ready to be appended now

    def _turn(self) -> None:
        """The next group. Until it is committed nobody else touches the log."""
        if not self._items:
            self._idle.set()
            return
        items, self._items = self._items, []
        group = self._group = _Group(items, time.perf_counter(), [])
        if self.broken is not None:  # what was refused then must not reach the disk now
            self._fail(group, SpoolBrokenError(self.broken))
            self._committed(group)
            return
        try:
            if any(item.files for item in items) or not self._log.has_room_for(len(items)):
                self._thread.submit(self._commit_in_thread, group).add_done_callback(self._told)
                return
            self._apply(group)
            if self.broken is None:
                group.size = self._log.write()
            current = self._log.current
            if current is not None and group.size:
                self._syncer.sync(current.fd, lambda error: self._synced(group, error))
                return
        except Exception as failed:
            self._break(group, failed)
        self._committed(group)

    def _synced(self, group: _Group, error: OSError | None) -> None:
        if group is not self._group:  # given up meanwhile
            return
        if error is None:
            self._log.written_is_durable()
        else:
            self._break(group, error)
        self._committed(group)

    def _commit_in_thread(self, group: _Group) -> _Group:
        try:
            self._log.make_room_for(len(group.items))
            self._apply(group)
            if self.broken is None:
                group.size = self._log.sync()
        except Exception as failed:
            self._break(group, failed)
        return group

    def _told(self, done: Future[_Group]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._committed, done.result())

    def _committed(self, group: _Group) -> None:
        """Tell who waits, and go on with what was appended meanwhile."""
        if group is not self._group:  # given up meanwhile
            return
        self._group = None
        self._observed(group)
        reach("journal.before-answer")
        self._tell(group.items, group.errors)
        self._grown.set()
        self._turn()

    def _look(self) -> None:
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        group = self._group
        if group is None:
            return
        group.looks += 1
        if group.looks == LATE_LOOKS:
            log.warning("spool_waits_for_its_volume", records=len(group.items))
        elif group.looks >= LAST_LOOKS:
            self._give_up(group)

    def _give_up(self, group: _Group) -> None:
        """Nobody waits any longer. What was written may be durable or not."""
        self.given_up = True
        self._group = None
        broken = self._broken_by(OSError(errno.ETIMEDOUT, "the volume does not answer"))
        self._tell(group.items, [broken] * len(group.items))  # its own errors: a thread has them
        self._grown.set()
        self._turn()

    def _tell(self, items: list[_Item], errors: Sequence[Exception | None]) -> None:
        dropped = 0
        for item, error in zip(items, errors, strict=True):
            dropped += 0 if error is None else item.decisions
            done = item.done
            if done is None or done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        self._dropped(dropped)

    def _observed(self, group: _Group) -> None:
        if self._observer is None or not group.size:
            return
        try:
            seconds = time.perf_counter() - group.began
            self._observer.group(len(group.items), group.size, seconds)
        except Exception:  # nobody waits longer for that
            log.exception("spool_observer_failed")

    def _dropped(self, decisions: int) -> None:
        if not decisions:
            return
        log.error("decisions_dropped", decisions=decisions)
        if self._observer is None:
            return
        try:
            self._observer.dropped(decisions)
        except Exception:  # nobody waits longer for that
            log.exception("spool_observer_failed")

    def _apply(self, group: _Group) -> None:
        group.errors = [self._error_of(item) for item in group.items]
        if self.broken is not None:  # also for what was applied before it broke
            self._fail(group, SpoolBrokenError(self.broken))

    def _error_of(self, item: _Item) -> Exception | None:
        if self.broken is not None:
            return SpoolBrokenError(self.broken)
        try:
            item.apply(self._log)
        except SpoolFullError as refused:
            if self._observer is not None and item.done is not None:
                self._observer.refused()
            return refused
        except OSError as failed:
            return self._broken_by(failed)
        except Exception as failed:  # told to who asked; the others' records go on
            return failed
        return None

    def _break(self, group: _Group, error: Exception) -> None:
        self._fail(group, self._broken_by(error))

    def _fail(self, group: _Group, broken: SpoolBrokenError) -> None:
        group.size = 0
        group.errors = [error or broken for error in group.errors or [None] * len(group.items)]

    def _broken_by(self, error: Exception) -> SpoolBrokenError:
        # After a failed sync the kernel may call lost pages clean: only a restart knows what is
        # there.
        why = error.strerror if isinstance(error, OSError) else repr(error)
        self.broken = f"the spool cannot be written ({why}); restart this replica"
        log.error("spool_broken", error=why)
        return SpoolBrokenError(self.broken)
