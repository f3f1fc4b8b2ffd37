"""What a dead writer left: its chain goes on, its open attempts are closed, it is sealed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import structlog

from terrace_gateway.crash_points import reach
from terrace_gateway.spool.framing import FRAME_BYTES, Frame, FrameKind, Scan, cover, scan
from terrace_gateway.spool.records import close_room
from terrace_gateway.spool.segments import Segment, SpoolDirectory
from terrace_gateway.spool.spool_log import Chain, OpenAttempt, SpoolLog

log = structlog.get_logger()


@dataclass
class Recovery:
    """What was found. ``incarnations`` are those that the dead writers acted for, by writer."""

    incarnations: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    abandoned: int = 0
    """Open attempts that were closed as unknown."""
    torn_bytes: int = 0
    damage: list[str] = field(default_factory=list[str])
    """Places that had been durable and cannot be read: file and offsets."""
    damaged_segments: set[int] = field(default_factory=set[int])
    damaged_writers: set[str] = field(default_factory=set[str])
    """Writers of whom records are lost, also those whose file an earlier start set aside."""

    def name_damage(self, segment: Segment, place: str) -> None:
        """Records of this file that had been durable are lost."""
        self.damage.append(f"{segment.path.name}, {place}")
        self.damaged_segments.add(segment.number)
        self.damaged_writers.add(segment.writer)


def recover(directory: SpoolDirectory, *, replica: str, at: datetime) -> Recovery:
    """Make every chain in the directory whole and sealed. Needs no database.

    A torn tail is cut to the last whole record, and holes in front of that are covered. Damage is
    named, never skipped in silence: what can be read counts, the file is set aside after it was
    shipped. Raises ``OSError``.
    """
    found = Recovery(damaged_writers=set(directory.damaged_writers()))
    segments = [directory.segments[number] for number in sorted(directory.segments)]
    for writer, group in groupby(segments, key=lambda segment: segment.writer):
        spool = SpoolLog(directory, replica=replica, chain=Chain(writer))
        _recover_writer(spool, list(group), at, found)
    for place in found.damage:
        log.error("spool_damaged", place=place)
    if found.abandoned or found.torn_bytes:
        log.warning("spool_recovered", abandoned=found.abandoned, torn_bytes=found.torn_bytes)
    return found


def _recover_writer(
    spool: SpoolLog, segments: list[Segment], at: datetime, found: Recovery
) -> None:
    chain, opens = spool.chain, spool.opens
    before: Segment | None = None
    holes, end = False, None
    for segment in segments:
        frames = [frame for _, frame in _read(segment, found, segment is segments[-1]).frames]
        # A hole's number is 0: what is behind it was durable for nobody and tells of no loss.
        if before is not None and frames:
            own = frames[0].kind is not FrameKind.HEADER  # a header has the number before its own
            if frames[0].number > chain.number + own:
                found.name_damage(before, f"records {chain.number + 1} to {frames[0].number - own}")
        for frame in frames:
            holes, end = holes or frame.kind is FrameKind.HOLE, frame.kind
            _apply(frame, chain, opens, segment.number)
        before = segment
    found.incarnations[chain.writer] = chain.incarnations
    if chain.sealed and not (holes and opens):  # else its last closes were lost, the seal was not
        return
    chain.sealed = False
    last = segments[-1]
    if end is FrameKind.SEAL:  # who ships it calls the chain ended: what follows takes its place
        last.written = last.durable = last.written - FRAME_BYTES
    spool.go_on(last)
    found.abandoned += len(opens)
    for attempt_id in list(opens):
        reach("recovery.before-abandon")
        spool.abandon(attempt_id, at)
    reach("recovery.before-seal")
    spool.seal()
    spool.sync()
    last.give_back()
    reach("recovery.after-seal")


def _read(segment: Segment, found: Recovery, last: bool) -> Scan:
    scanned = scan(segment.path.read_bytes())
    if not last and scanned.torn and not scanned.damage:
        # A newer file is made only when all of this one is durable: it has no torn tail.
        found.name_damage(segment, f"{scanned.torn} bytes, also behind byte {scanned.end}")
    elif scanned.torn or segment.written > scanned.end:
        found.torn_bytes += scanned.torn
        if scanned.holes:
            _cover(segment, scanned.holes)
            scanned = scan(segment.path.read_bytes())
        _zero(segment, scanned.end)
    for begin, end in scanned.damage:
        found.name_damage(segment, f"bytes {begin} to {end}")
    segment.written = segment.durable = scanned.end
    return scanned


def _cover(segment: Segment, holes: Iterable[tuple[int, int]]) -> None:
    """Make holes readable, before anything is written that says that they were synced."""
    for begin, end in holes:
        if end - begin >= FRAME_BYTES:  # a record's, so it is
            segment.written = begin
            segment.write(cover(end - begin))
    segment.sync()


def _zero(segment: Segment, begin: int) -> None:
    """Clear what follows the last record, in place: the room behind it is promised to closes."""
    view = segment.path.read_bytes()[begin:].rstrip(b"\0")
    if view:
        segment.written = begin
        segment.write(bytes(len(view)))
        segment.written = begin
        segment.sync()


def _apply(frame: Frame, chain: Chain, opens: dict[str, OpenAttempt], segment: int) -> None:
    if frame.kind is FrameKind.HOLE:
        return
    chain.number = max(chain.number, frame.number)
    if frame.seq >= chain.seq:
        chain.seq, chain.hash = frame.seq, frame.hash
    match frame.kind:
        case FrameKind.HEADER:
            chain.incarnations = _union(chain.incarnations, json.loads(frame.body)["incarnations"])
        case FrameKind.INCARNATION:
            chain.incarnations = _union(chain.incarnations, [int(frame.body)])
        case FrameKind.OPEN | FrameKind.CARRY:
            fields = json.loads(frame.body)
            room = close_room(fields, frame.body)
            opens[frame.key] = OpenAttempt(fields, frame.body, room, segment)
            chain.incarnations = _union(chain.incarnations, [fields["incarnation_id"]])
        case FrameKind.FINAL | FrameKind.ENTRY:
            opens.pop(frame.key, None)
        case FrameKind.SEAL:
            chain.sealed = True


def _union(known: list[int], more: list[int]) -> list[int]:
    return known + [number for number in more if number not in known]
