"""Drives the real Pulumi engine against the simulated cloud; written to be read in a test."""

from harness.cloud import Call, Cloud
from harness.engine import Engine, bin_directory
from harness.graph import graph_rows
from harness.platform import Platform, make_disposable
from harness.runs import Run, Step
from harness.stack import Stack

__all__ = [
    "Call",
    "Cloud",
    "Engine",
    "Platform",
    "Run",
    "Stack",
    "Step",
    "bin_directory",
    "graph_rows",
    "make_disposable",
]
