"""Simulated Pulumi providers: the real engine, a cloud that lives in one SQLite file."""

__version__ = "0.1.0"
