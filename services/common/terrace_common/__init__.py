"""Terrace's shared schemas. Pure: nothing here does I/O, except ``telemetry`` (an extra)."""
