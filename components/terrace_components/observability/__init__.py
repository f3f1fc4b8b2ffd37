"""Metrics of everything that runs."""
