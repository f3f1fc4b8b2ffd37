"""From rounds to the figures that the issue asks for."""

from collections.abc import Iterable
from statistics import quantiles

from .load import Round


def report(rounds: list[Round]) -> str:
    """A table of what was measured, and the ratios."""
    subjects = list(dict.fromkeys(r.subject for r in rounds))
    shapes = list(dict.fromkeys((r.shape, r.callers) for r in rounds))
    lines = [
        "shape              callers  subject          calls  CPU ms/call  first byte p50/p99 ms"
    ]
    for shape, callers in shapes:
        for subject in subjects:
            mine = [
                r for r in rounds if (r.subject, r.shape, r.callers) == (subject, shape, callers)
            ]
            if not mine:
                continue
            p50, p99 = first_byte(mine)
            lines.append(
                f"{shape:18} {callers:7}  {subject:15} {sum(r.calls for r in mine):6}"
                f"  {cpu(mine) * 1000:11.3f}  {p50 * 1000:8.2f} / {p99 * 1000:.2f}"
            )
    lines += ["", "ratios"]
    for name, above, below, shape in (
        ("requests per core, relay over LiteLLM (>= 10)", "litellm", "relay", "plain"),
        (
            "requests per core, guard's relay over LiteLLM (>= 10)",
            "litellm",
            "guard-relay",
            "plain",
        ),
        (
            "requests per core, guard's relay over Portkey's gateway",
            "portkey",
            "guard-relay",
            "plain",
        ),
        ("CPU per call, our translator over LiteLLM", "translator", "litellm", "plain"),
        ("streams per core, relay over LiteLLM", "litellm", "relay", "stream"),
        ("CPU of 1,000 chunks, relay over raw (<= 2)", "relay", "raw", "stream of 1000"),
        (
            "CPU of 1,000 chunks, guard's relay over raw (<= 2)",
            "guard-relay",
            "raw",
            "stream of 1000",
        ),
        (
            "CPU per call, guard and LiteLLM over LiteLLM (<= 1.15)",
            "guard-litellm",
            "litellm",
            "plain",
        ),
    ):
        a = [r for r in rounds if r.subject == above and r.shape == shape]
        b = [r for r in rounds if r.subject == below and r.shape == shape]
        if a and b:
            lines.append(f"  {name}: {cpu(a) / cpu(b):.2f}")
    for subject in subjects:
        for shape, callers in shapes:
            mine, raw = (
                [r for r in rounds if (r.subject, r.shape, r.callers) == (s, shape, callers)]
                for s in (subject, "raw")
            )
            if subject != "raw" and mine and raw and mine[0].wall_seconds:
                (m50, m99), (r50, r99) = first_byte(mine), first_byte(raw)
                lines.append(
                    f"  first byte, {subject} over raw, {shape}, {callers} callers:"
                    f" p50 {m50 / r50:.2f}, p99 {m99 / r99:.2f}"
                )
    return "\n".join(lines)


def cpu(rounds: Iterable[Round]) -> float:
    """Seconds of CPU per call."""
    mine = list(rounds)
    return sum(r.cpu_seconds for r in mine) / max(1, sum(r.calls for r in mine)) or 1e-9


def first_byte(rounds: Iterable[Round]) -> tuple[float, float]:
    """Median and 99th percentile."""
    times = [t for r in rounds for t in r.first_byte]
    cuts = quantiles(times, n=100) if len(times) > 1 else [times[0]] * 99
    return cuts[49], cuts[98]
