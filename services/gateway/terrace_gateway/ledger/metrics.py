"""What the spool and the ledger say of themselves when metrics are asked for."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.opening_index import OpeningIndex
from terrace_gateway.ledger.reaper import LedgerReaper
from terrace_gateway.ledger.shipper import Shipper
from terrace_gateway.spool.journal import SpoolJournal


class LedgerCollector:
    """Reads the parts when metrics are asked for."""

    def __init__(
        self,
        journal: SpoolJournal,
        shipper: Shipper,
        keeper: LedgerKeeper,
        opening_index: OpeningIndex,
        reaper: LedgerReaper,
    ) -> None:
        self._journal = journal
        self._shipper = shipper
        self._keeper = keeper
        self._opening_index = opening_index
        self._reaper = reaper

    def collect(self) -> Iterator[Any]:
        """As prometheus_client asks."""
        journal, shipped = self._journal, self._shipper.shipped
        yield GaugeMetricFamily(
            "terrace_spool_bytes", "What the spool takes of its volume.", journal.allocated_bytes
        )
        yield GaugeMetricFamily(
            "terrace_spool_unshipped_bytes",
            "Durable records that the ledger does not have yet.",
            journal.reader.behind_bytes,
        )
        yield GaugeMetricFamily(
            "terrace_spool_open_attempts", "Attempts without a close.", journal.open_attempts
        )
        yield GaugeMetricFamily(
            "terrace_spool_broken", "1: the volume failed, restart.", float(bool(journal.broken))
        )
        yield GaugeMetricFamily(
            "terrace_spool_damaged_segments",
            "Files that could not be read whole at the start.",
            len(journal.recovery.damaged_segments),
        )
        yield GaugeMetricFamily(
            "terrace_ledger_anchor_failures",
            "Passes in a row in which heads were not anchored.",
            self._keeper.failures,
        )
        yield GaugeMetricFamily(
            "terrace_ledger_months_missing",
            "Months without a table of their own; ledger_month_not_made in the log says why.",
            self._keeper.missing_months,
        )
        yield GaugeMetricFamily(
            "terrace_ledger_indexes_missing",
            "Months without an index of openings; ledger_index_not_made in the log says why.",
            self._opening_index.missing,
        )
        for name, text, value in (
            ("entries", "Entries committed.", shipped.entries),
            ("batches", "Transactions.", shipped.batches),
            ("skipped", "Records that the database had already.", shipped.skipped),
            ("late", "Closes of attempts that had been given up.", shipped.late),
            ("dead_letters", "Records that the database refused.", shipped.dead),
            ("retries", "Batches that had to wait for the database.", shipped.retries),
            ("forfeited", "Incarnations of lost records, left to an operator.", shipped.forfeited),
            ("anchored", "Heads anchored.", self._keeper.anchored),
            ("given_up", "Attempts given up as unknown.", self._reaper.given_up),
        ):
            yield CounterMetricFamily(f"terrace_ledger_{name}", text, value)
