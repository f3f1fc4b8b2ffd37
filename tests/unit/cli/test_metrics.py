"""Reading Prometheus: growth per series, whatever restarts in between."""

import time

import httpx
import pytest

from terrace_cli.errors import NotRunningError
from terrace_cli.smoke.metrics import Prometheus, grown_by


def key(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_growth_is_per_series() -> None:
    before = {key(pod="a"): 5.0, key(pod="gone"): 100.0}
    after = {key(pod="a"): 7.0, key(pod="new"): 3.0}
    assert grown_by(before, after) == 5


def test_a_counter_that_began_anew_counts_from_zero() -> None:
    assert grown_by({key(pod="a"): 50.0}, {key(pod="a"): 2.0}) == 2


def test_nothing_grew() -> None:
    assert grown_by({key(): 5.0}, {key(): 5.0}) == 0
    assert grown_by({}, {}) == 0


def test_it_waits_for_the_next_scrape() -> None:
    values = iter([0, 0, 12])

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.params["query"] == "terrace_requests_total"
        result = [{"metric": {"pod": "a"}, "value": [0, str(next(values))]}]
        return httpx.Response(200, json={"status": "success", "data": {"result": result}})

    prometheus = Prometheus("http://p", transport=httpx.MockTransport(answer))
    assert prometheus.growth("terrace_requests_total", {}, 12, until=time.monotonic() + 30) == 12


def test_it_gives_up_with_what_it_saw() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": {"result": []}}))
    assert Prometheus("http://p", transport=transport).growth("x", {}, 1, until=0) == 0


@pytest.mark.parametrize(
    "answer", [httpx.Response(503), httpx.Response(200, text="x"), httpx.Response(200, json={})]
)
def test_what_is_no_answer_is_said(answer: httpx.Response) -> None:
    prometheus = Prometheus("http://p", transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(NotRunningError, match="http://p"):
        prometheus.series("x")
