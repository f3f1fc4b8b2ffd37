"""Mounts below our directories: container root file systems, pod volumes, network namespaces."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["mounts_below", "unmount_below"]

MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8


def mounts_below(
    roots: Iterable[Path], mountinfo: Path = Path("/proc/self/mountinfo")
) -> list[Path]:
    """Mount points strictly below any of `roots`, in the order in which they can be unmounted."""
    tops = [f"{root}/" for root in roots]
    found = [_unescape(line.split(" ")[4]) for line in mountinfo.read_text().splitlines()]
    # The kernel lists a mount after the one it lies on; the reverse order also undoes mounts
    # stacked on one point.
    return [Path(point) for point in reversed(found) if any(point.startswith(top) for top in tops)]


def unmount_below(roots: Iterable[Path]) -> tuple[int, list[str]]:
    """Unmount everything below `roots`. Returns how many went, and what would not with the reason.

    A busy mount is detached: it leaves the tree now and ends with its last user.
    """
    roots = list(roots)
    libc = ctypes.CDLL(None, use_errno=True)
    count = 0
    stuck: list[str] = []
    for point in mounts_below(roots):
        for flags in (UMOUNT_NOFOLLOW, UMOUNT_NOFOLLOW | MNT_DETACH):
            if libc.umount2(os.fsencode(point), flags) == 0:
                count += 1
                break
        else:
            stuck.append(f"{point}: {os.strerror(ctypes.get_errno())}")
    return count, stuck


def _unescape(text: str) -> str:
    """mountinfo writes blank, tab, newline and backslash as three octal digits."""
    if "\\" not in text:
        return text
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
