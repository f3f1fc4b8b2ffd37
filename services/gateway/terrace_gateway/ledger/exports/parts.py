"""Parts of an export: rows of the ledger as Parquet. Needs ``terrace-gateway[export]``."""

import io
import json
from collections.abc import Sequence
from typing import Any, cast

JSON_COLUMNS = ("charges", "detail")
MOMENTS = frozenset({"opened_at", "closed_at", "created_at"})
HASHES = frozenset({"hash", "previous_hash"})
NUMBERS = frozenset(
    {
        "entry_id", "seq", "revision", "incarnation_id", "policy_version", "reserved_micro_usd",
        "reserved_input_tokens", "reserved_output_tokens", "input_tokens", "output_tokens",
        "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens", "images",
        "amount_micro_usd", "latency_ms", "first_byte_ms",
    }
)  # fmt: skip


class ExportUnavailableError(RuntimeError):
    """pyarrow is not installed."""


class PartWriter:
    """One part, page by page: of its rows it keeps what they are compressed. Calls block."""

    def __init__(self, columns: Sequence[str]) -> None:
        """``columns``: names, as the database gives them. Raises ``ExportUnavailableError``."""
        parquet = need_parquet()
        import pyarrow as pa  # noqa: PLC0415  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

        self._arrow = cast("Any", pa)
        self._schema = self._arrow.schema([(name, self._kind(name)) for name in columns])
        self._json = [place for place, name in enumerate(columns) if name in JSON_COLUMNS]
        self._sink = io.BytesIO()
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self.rows = 0

    def add(self, page: Sequence[Sequence[Any]]) -> None:
        """Rows, as tuples of the columns."""
        columns: list[Sequence[Any]] = list(zip(*page, strict=True))
        for place in self._json:
            columns[place] = [
                None if value is None else json.dumps(value, sort_keys=True)
                for value in columns[place]
            ]
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self.rows += len(page)

    def finish(self) -> bytes:
        """The part's bytes. Nothing can be added behind them."""
        self._writer.close()
        return self._sink.getvalue()

    def _kind(self, name: str) -> Any:
        if name in MOMENTS:
            return self._arrow.timestamp("us", tz="UTC")
        if name in HASHES:
            return self._arrow.binary()
        if name == "late":
            return self._arrow.bool_()
        return self._arrow.int64() if name in NUMBERS else self._arrow.string()


def read_part(body: bytes) -> list[dict[str, Any]]:
    """Rows of a part as the database gave them. Raises ``ExportUnavailableError``."""
    table = need_parquet().read_table(io.BytesIO(body))
    rows = cast("list[dict[str, Any]]", table.to_pylist())
    for row in rows:
        for name in JSON_COLUMNS:
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def need_parquet() -> Any:
    """pyarrow's module of it. Raises ``ExportUnavailableError``."""
    try:
        from pyarrow import parquet  # noqa: PLC0415  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError:
        raise ExportUnavailableError(
            "exporting needs pyarrow: install terrace-gateway[export]"
        ) from None
    return cast("Any", parquet)
