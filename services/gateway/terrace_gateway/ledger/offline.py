"""``python -m terrace_gateway.ledger.offline``: checks exported Parquet without any database.

Needs the extra ``terrace-gateway[export]``. It finds a part that is not what its manifest says, an
entry whose hash or columns are not those of its text, entries that are missing between two of a
chain, and an anchor within that is not of its entry or not signed by a known key. It cannot see
what is before the first or behind the last exported entry of a chain, nor a day at the end that was
never exported: the database's own verification does.
"""

import argparse
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from terrace_gateway.ledger.chains.anchors import Anchor, AnchorStore, read_anchor
from terrace_gateway.ledger.chains.chain_check import ChainCheck, Finding
from terrace_gateway.ledger.chains.verify import Verification, entry_row
from terrace_gateway.ledger.exports.parts import read_part
from terrace_gateway.ledger.object_store import ObjectMissingError, ObjectStore, open_objects


def verify_export(
    objects: ObjectStore,
    *,
    prefix: str = "ledger/",
    anchors: AnchorStore | None = None,
    public_keys: Sequence[bytes] = (),
) -> Verification:
    """Every part's digest, every entry's hash and columns, the order of every chain, and the
    anchors that lie within. Reads one chain's rows of all days into memory at a time.

    Raises ``ObjectStoreError``, ``ExportUnavailableError``.
    """
    result = Verification()
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for key in objects.keys(prefix):
        if key.endswith("/manifest.json"):
            manifest: dict[str, Any] = json.loads(objects.get(key))
            name = (manifest["partition"], manifest["day"])
            if name not in newest or _size(newest[name]) < _size(manifest):
                newest[name] = manifest
            elif _same_entries_differ(newest[name], manifest):
                text = f"{key} has other entries than another manifest of as many"
                result.add([Finding("changed", "", 0, text)])
    for manifest in newest.values():
        for part in manifest["parts"]:
            try:
                body = objects.get(part["key"])
            except ObjectMissingError as error:
                result.add([Finding("missing", "", 0, str(error))])
                continue
            if hashlib.sha256(body).hexdigest() != part["sha256"]:
                text = f"{part['key']} is not what its manifest says"
                result.add([Finding("changed", "", 0, text)])
                continue
            for row in read_part(body):
                rows[row["writer"]].append(row)
    signed = _anchors(anchors, public_keys, result)
    for writer, entries in sorted(rows.items()):
        entries.sort(key=lambda row: (row["seq"], row["entry_id"]))
        first, last = entries[0], entries[-1]
        within = [a for a in signed.get(writer, ()) if first["seq"] <= a.seq <= last["seq"]]
        check = ChainCheck(
            writer, seq=first["seq"] - 1, hash=first["previous_hash"], anchors=within
        )
        for row in entries:
            result.add(check.feed(entry_row(row)))
        result.entries += len(entries)
        result.chains += 1
    return result


def _size(manifest: dict[str, Any]) -> tuple[int, int]:
    """Grows with a day: entries are only added."""
    return manifest["rows"], manifest["last_entry_id"]


def _same_entries_differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _size(one) == _size(other) and one["chains"] != other["chains"]


def _anchors(
    store: AnchorStore | None, public_keys: Sequence[bytes], result: Verification
) -> dict[str, list[Anchor]]:
    found: dict[str, list[Anchor]] = defaultdict(list)
    for document in () if store is None else store.documents():
        anchor = read_anchor(document)
        result.anchors += 1
        if public_keys and not anchor.is_signed_by(public_keys):
            text = "an anchor is not signed by a key that we know"
            result.add([Finding("signature", anchor.writer, anchor.seq, text)])
        found[anchor.writer].append(anchor)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when something was found."""
    parser = argparse.ArgumentParser(
        prog="terrace_gateway.ledger.offline", description="Check an exported ledger."
    )
    parser.add_argument("export", help="Directory or s3://bucket of the export.")
    parser.add_argument("--anchors", help="Directory or s3://bucket of the anchors.")
    parser.add_argument("--public-key", action="append", default=[], help="32 bytes in hex.")
    chosen = parser.parse_args(arguments)
    anchors = None if chosen.anchors is None else AnchorStore(open_objects(chosen.anchors))
    result = verify_export(
        open_objects(chosen.export),
        anchors=anchors,
        public_keys=[bytes.fromhex(key) for key in chosen.public_key],
    )
    for finding in result.findings:
        sys.stdout.write(f"{finding.kind}: {finding.writer} {finding.seq}: {finding.text}\n")
    verdict = "whole" if result.whole else "NOT whole"
    sys.stdout.write(f"{verdict}: {result.entries} entries in {result.chains} chains\n")
    return 0 if result.whole else 1


if __name__ == "__main__":
    sys.exit(main())
