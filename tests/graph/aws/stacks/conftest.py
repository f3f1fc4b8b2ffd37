"""The account that the committed aws stacks find, and fixtures that render them as graphs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .. import bedrock_answers, eks_answers
from .. import cloud as simulated
from ..cloud import Cloud
from ..stack_programs import REGION, ROOT

GOVERNANCE = ROOT / "services/common/terrace_common/examples/governance.aws.yaml"
READ_OUTPUTS = "pulumi:pulumi:readStackOutputs"
VPC = "vpc-0123456789abcdef0"


@pytest.fixture(autouse=True)
def account(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An account in the region of the stacks, with the VPC that one of them finds there."""
    for module in (simulated, eks_answers):
        monkeypatch.setattr(module, "REGION", REGION)
    eks_answers.answer_clusters(cloud)
    eks_answers.answer_databases(cloud)
    offered = {
        "anthropic.claude-haiku-4-5-20251001-v1:0": ["INFERENCE_PROFILE"],
        "meta.llama3-3-70b-instruct-v1:0": ["INFERENCE_PROFILE"],
    }
    monkeypatch.setattr(bedrock_answers, "TYPES", bedrock_answers.TYPES | offered)
    profiles = {f"us.{model}": ("us-east-1", "us-west-2") for model in offered}
    monkeypatch.setitem(
        bedrock_answers.PROFILES, REGION, bedrock_answers.PROFILES[REGION] | profiles
    )
    bedrock_answers.answer_for_bedrock(cloud)
    cloud.outputs["kubernetes:helm.sh/v3:Release"] = lambda _, inputs: {
        "status": {"name": inputs["name"], "status": "deployed"}
    }
    cloud.answers["aws:index/getRegion:getRegion"] = {"id": REGION, "region": REGION}
    cloud.answers["aws:index/getAvailabilityZones:getAvailabilityZones"] = {
        "id": REGION,
        "names": [f"{REGION}{letter}" for letter in "abcd"],
        "zoneIds": [f"use1-az{n}" for n in range(1, 5)],
    }
    cloud.answers["aws:ec2/getVpcEndpointService:getVpcEndpointService"] = lambda args: {
        "id": args["service"],
        "serviceName": f"com.amazonaws.{REGION}.{args['service']}",
        "availabilityZones": [f"{REGION}{letter}" for letter in "abcd"],
    }
    cloud.answers["aws:route53/getZone:getZone"] = lambda args: {
        "id": args["zoneId"],
        "zoneId": args["zoneId"],
        "name": "example.com",
        "privateZone": False,
    }
    cloud.answers["aws:ec2/getVpc:getVpc"] = {
        "id": VPC,
        "cidrBlock": "10.40.0.0/16",
        "cidrBlockAssociations": [{"cidrBlock": "10.40.0.0/16", "state": "associated"}],
        "enableDnsSupport": True,
        "enableDnsHostnames": True,
    }
    subnets = {
        f"subnet-0123456789abcdef{n}": (f"{REGION}{letter}", f"10.40.{n}.0/24")
        for n, letter in enumerate("abc")
    }
    cloud.set_subnets(VPC, subnets)
    return cloud


@pytest.fixture(scope="module")
def rendered() -> dict[tuple[str, bool], Any]:
    """Graphs of the committed settings: a rendering takes seconds, and is the same each time."""
    return {}


@pytest.fixture
def substrate(
    render: Any, stack_program: Any, rendered: dict[tuple[str, bool], Any]
) -> Callable[..., Any]:
    """``substrate(stack)``: the graph of a substrate stack."""

    def run(stack: str, *, preview: bool = False) -> Any:
        if (stack, preview) not in rendered:
            graph = render(stack_program(stack), stack=stack, preview=preview)
            rendered[(stack, preview)] = graph
        return rendered[(stack, preview)]

    return run


@pytest.fixture
def platform(
    render: Any,
    stack_program: Any,
    substrate: Any,
    cloud: Cloud,
    rendered: dict[tuple[str, bool], Any],
) -> Callable[..., Any]:
    """``platform(stack)``: the graph of the platform on the substrate stack of that name. ``told``
    changes what the substrate says."""

    def run(
        stack: str, *, preview: bool = False, told: dict[str, Any] | None = None, **changes: Any
    ) -> Any:
        name = f"{stack}-platform"
        as_committed = told is None and not changes
        if as_committed and (name, preview) in rendered:
            return rendered[(name, preview)]
        output = substrate(stack).outputs["substrate"] | (told or {})
        cloud.answers[READ_OUTPUTS] = {
            # As the engine gives them: every number is a float.
            "outputs": json.loads(json.dumps({"substrate": output}), parse_int=float),
            "secretOutputNames": [],
        }
        graph = render(stack_program(name, **changes), stack=name, preview=preview)
        if as_committed:
            rendered[(name, preview)] = graph
        return graph

    return run


@pytest.fixture
def governance_with(tmp_path: Path) -> Callable[[str, str], str]:
    """``governance_with(old, new)``: path of the stack's own spec with ``new`` for ``old``."""

    def write(old: str, new: str) -> str:
        text = GOVERNANCE.read_text()
        assert old in text
        file = tmp_path / "governance.yaml"
        file.write_text(text.replace(old, new))
        return str(file)

    return write
