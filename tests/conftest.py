"""Marks tests with their tier (first folder below tests/); prints the tier's minutes at the end."""

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example took says something of the machine, nothing of the code.
settings.register_profile("terrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("terrace")

TESTS = Path(__file__).parent
LOOPBACK = "127.0.0.1,localhost"
TIERS = ("unit", "graph", "engine", "service", "cluster")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_began] = time.monotonic()
    # A proxy is for the world outside: what tests start is on the loopback.
    if any(name.lower() in {"http_proxy", "https_proxy", "all_proxy"} for name in os.environ):
        for name in ("no_proxy", "NO_PROXY"):
            os.environ[name] = ",".join(filter(None, (os.environ.get(name), LOOPBACK)))
    # A shell's background job ignores Ctrl-C, and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_began = pytest.StashKey[float]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    del config
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0]
        if tier in TIERS:
            item.add_marker(tier)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    del exitstatus
    seen = {
        Path(report.fspath).parts[1]
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and Path(report.fspath).parts[:1] == ("tests",)
    }
    minutes = (time.monotonic() - config.stash[_began]) / 60
    terminalreporter.write_line(f"tier {'+'.join(sorted(seen)) or '(none)'}: {minutes:.1f} min")
