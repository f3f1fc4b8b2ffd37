"""Models that are in force and not deployed: said as a problem, with the way back."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from terrace_cli import platform_status
from terrace_cli.endpoints import Endpoints
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.undeployed_models import undeployed_problem
from terrace_local import cluster
from terrace_local.cluster import ClusterStatus

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin
from .test_platform_status import FakeApi

UNDEPLOYED = "model-not-deployed"
# Of each version: the codes that going back to it would meet; None: its text is not valid now.
PLANS = {4: None, 3: [UNDEPLOYED], 2: ["key-orphaned"], 1: []}


class Versions(FakeAdmin):
    """Version 5 is in force; versions 1 to 4 came before."""

    def __init__(self, away: list[str], plans: dict[int, list[str] | None]) -> None:
        super().__init__()
        models = [{"name": name} for name in ("a", "b", "c", "d")]
        self.answers["/admin/v1/models"] = (
            200,
            {"governance_version": 5, "not_deployed": away, "models": models},
        )
        listed = [{"version": number} for number in (5, *sorted(plans, reverse=True))]
        self.answers["/admin/v1/governance/versions"] = (200, {"versions": listed, "next": None})
        self._plans = plans

    def handle(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(target)
        if parts.path == "/admin/v1/governance":
            return 200, {"text": f"text of {parse_qs(parts.query)['version'][0]}"}
        if parts.path == "/admin/v1/governance/plan":
            codes = self._plans[int(body["text"].rpartition(" ")[2])]
            if codes is None:
                error = {"message": "wrong", "type": "x", "param": None, "code": "x"}
                return 400, {"error": error}
            return 200, {"findings": [{"code": code, "blocking": True} for code in codes]}
        return super().handle(method, target, body)


def problem(away: list[str], plans: dict[int, list[str] | None]) -> str | None:
    with Versions(away, plans) as fake, GatewayAdmin(fake.url, ADMIN_KEY) as admin:
        return undeployed_problem(admin)


def test_deployed_models_are_no_problem() -> None:
    assert problem([], PLANS) is None


def test_the_newest_version_that_would_work_is_named() -> None:
    said = problem(["a", "b", "c", "d"], PLANS)
    assert said is not None
    assert said.startswith("No model of governance version 5 can be called")
    assert "a, b, c and 1 more" in said
    assert "`terrace governance rollback 2 --reason WHY --allow key-orphaned`" in said


def test_some_models_are_a_problem_too() -> None:
    said = problem(["b"], {1: []})
    assert said is not None
    assert said.startswith("1 of the 4 models of governance version 5 cannot be called")
    assert "`terrace governance rollback 1 --reason WHY`" in said


def test_without_a_version_to_go_back_to_the_rollout_is_named() -> None:
    said = problem(["b"], {3: [UNDEPLOYED]})
    assert said is not None
    assert "rollback" not in said
    assert "terrace:governanceFile" in said


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Versions]:
    """A platform that stands, whose gateway is ready."""
    with Versions(["a", "b", "c", "d"], {1: []}) as fake:
        urls = {name: fake.url for name in ("gateway", "admin", "prometheus", "simulator")}
        monkeypatch.setattr(cluster, "status", lambda: ClusterStatus("running"))
        monkeypatch.setattr(platform_status, "KubernetesApi", FakeApi)
        monkeypatch.setattr(platform_status, "read_endpoints", lambda: Endpoints(**urls))
        ready = httpx.MockTransport(lambda _: httpx.Response(200))
        monkeypatch.setattr(platform_status, "patient_transport", lambda: ready)
        monkeypatch.setattr(
            GatewayAdmin, "of_this_machine", lambda: GatewayAdmin(fake.url, ADMIN_KEY)
        )
        yield fake


def test_status_is_not_well_while_no_model_can_be_called(
    invoke: Invoke, standing: Versions
) -> None:
    outcome = invoke("status")
    assert outcome.code != 0
    assert "Gateway: ready" in outcome.out
    assert "All is well" not in outcome.out
    assert "terrace governance rollback 1" in outcome.out
    standing.answers["/admin/v1/models"] = (
        200,
        {"governance_version": 1, "not_deployed": [], "models": []},
    )
    assert "All is well" in invoke("status").out
    standing.answers["/admin/v1/models"] = (401, {"error": {"message": "no", "code": "x"}})
    assert "could not be asked for" in json.loads(invoke("status", "--json").out)["problems"][0]
