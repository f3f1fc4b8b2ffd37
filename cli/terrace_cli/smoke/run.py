"""Runs the checks of `terrace smoke` in order and reports each as it ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from terrace_cli.endpoints import Endpoints
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.smoke.admin_checks import ADMIN_CHECKS, AUDIT_CHECK
from terrace_cli.smoke.bench import Bench, Check, CheckFailedError
from terrace_cli.smoke.books import SimulatorBill, compare
from terrace_cli.smoke.limit_checks import LIMIT_CHECKS
from terrace_cli.smoke.metrics import (
    GATEWAY_COST,
    GATEWAY_REQUESTS,
    SCRAPE_WAIT_SECONDS,
    SIMULATOR_BILLED,
    SIMULATOR_REQUESTS,
    Prometheus,
)
from terrace_cli.smoke.surface_checks import SURFACE_CHECKS

_BOOKS_SETTLE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check as it went."""

    name: str
    passed: bool
    expected: str
    seen: str
    seconds: float

    def line(self) -> str:
        """The line for people."""
        verdict = "ok  " if self.passed else "FAIL"
        return f"{verdict}  {self.name:<22}  expected: {self.expected:<34}  seen: {self.seen}"


def run_smoke(
    endpoints: Endpoints, admin: GatewayAdmin, report: Callable[[CheckResult], None]
) -> list[CheckResult]:
    """Run every check, also after one has failed. Keys made here are revoked at the end."""
    bill, prometheus = SimulatorBill(endpoints.simulator), Prometheus(endpoints.prometheus)
    bench = Bench(endpoints=endpoints, admin=admin, bill=bill)
    bench.first_bill_seq = bill.last_seq()
    bench.metrics_before = {
        counter: prometheus.series(counter)
        for counter in (GATEWAY_REQUESTS, GATEWAY_COST, SIMULATOR_REQUESTS, SIMULATOR_BILLED)
    }
    checks = (
        *SURFACE_CHECKS,
        *LIMIT_CHECKS,
        *ADMIN_CHECKS,
        Check(name="ledger equals bill", expected="equal to the micro-USD", run=_books_agree),
        AUDIT_CHECK,
        Check(
            name="prometheus",
            expected="gateway and simulator counted",
            run=lambda bench: _metrics_counted(bench, prometheus),
        ),
    )
    results: list[CheckResult] = []
    try:
        for check in checks:
            results.append(_run(check, bench))
            report(results[-1])
    finally:
        bench.clean_up()
    return results


def _run(check: Check, bench: Bench) -> CheckResult:
    began = time.monotonic()
    try:
        seen, passed = check.run(bench), True
    except CheckFailedError as failure:
        seen, passed = str(failure), False
    except Exception as error:  # a check reports whatever goes wrong, and the next one still runs
        seen, passed = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", False
    return CheckResult(
        name=check.name,
        passed=passed,
        expected=check.expected,
        seen=seen,
        seconds=round(time.monotonic() - began, 3),
    )


def _books_agree(bench: Bench) -> str:
    deadline = time.monotonic() + _BOOKS_SETTLE_SECONDS
    while True:
        ledger = bench.ledger()
        comparison = compare(ledger, bench.bill_of(ledger))
        if comparison.is_equal or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    seen = (
        f"{comparison.attempts} attempts, ledger {comparison.ledger_micro_usd}, "
        f"bill {comparison.bill_micro_usd} micro-USD"
    )
    if not comparison.is_equal:
        raise CheckFailedError(f"{seen}; {'; '.join(comparison.differences[:5])}")
    if not comparison.attempts or not comparison.ledger_micro_usd:
        raise CheckFailedError(f"{seen}: nothing to compare")
    return seen


def _metrics_counted(bench: Bench, prometheus: Prometheus) -> str:
    ledger = bench.ledger()
    attempts = len({entry["attempt_id"] for entry in ledger})
    # Fewer than attempts: counting tokens is one, and free.
    billed = len(bench.bill_of(ledger))
    money = sum(entry["amount_micro_usd"] for entry in ledger)
    if not attempts:
        raise CheckFailedError("no attempt to look for")
    seen, short = [], []
    until = time.monotonic() + SCRAPE_WAIT_SECONDS
    for counter, wanted in (
        (GATEWAY_REQUESTS, attempts),
        (GATEWAY_COST, money),
        (SIMULATOR_REQUESTS, billed),
        (SIMULATOR_BILLED, money),
    ):
        grown = prometheus.growth(counter, bench.metrics_before[counter], wanted, until=until)
        seen.append(f"{counter} +{grown:.0f}")
        if grown < wanted:
            short.append(f"{counter} grew by {grown:.0f}, not {wanted}")
    if short:
        raise CheckFailedError("; ".join(short))
    return ", ".join(seen)
