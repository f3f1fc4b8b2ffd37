"""What a person sees while it goes on."""

import io

from terrace_local.toolchain import ConsoleProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_there_is_a_line_at_each_end_and_every_thirty_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = ConsoleProgress(stream, clock=clock)
    progress.remaining(14)
    progress.begin("cluster", "build")
    progress.step("cluster", "compiling k8s.io/api")
    clock.now = 29
    progress.refresh()
    clock.now = 30
    progress.refresh()
    clock.now = 31
    progress.refresh()
    clock.now = 95
    progress.remaining(1)
    progress.end("cluster", "built")
    assert stream.getvalue().splitlines() == [
        "toolchain: cluster: build (14 left)",
        "toolchain: cluster: compiling k8s.io/api 30s (14 left)",
        "toolchain: cluster: built in 1m35s (1 left)",
    ]


def test_on_a_terminal_one_line_updates_itself() -> None:
    stream, clock = Terminal(), Clock()
    progress = ConsoleProgress(stream, clock=clock)
    progress.remaining(2)
    progress.begin("pulumi", "build")
    clock.now = 61
    progress.refresh()
    assert stream.getvalue() == "\r\x1b[Kpulumi: build 1m01s (2 left)"
    progress.note("a host can't be reached")
    assert stream.getvalue().endswith("\r\x1b[Ktoolchain: a host can't be reached\n")


def test_leaving_stops_the_ticker_and_clears_the_line() -> None:
    stream = Terminal()
    with ConsoleProgress(stream) as progress:
        progress.begin("pulumi", "build")
        progress.end("pulumi", "built")
    assert stream.getvalue().endswith("\r\x1b[K")
