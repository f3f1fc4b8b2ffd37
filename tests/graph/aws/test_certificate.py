"""The certificate: proven by DNS in a zone that holds its domain."""

from typing import Any

import pulumi
import pulumi_aws as aws
import pytest

import terrace_components as components

from .contract import check_component, make

DOMAIN = "models.example.com"
ARN = "arn:aws:acm:eu-west-1:123456789012:certificate/11111111-2222-4333-8444-555555555555"
VARIANTS = {
    "zone": {"domain": DOMAIN, "zone": {"id": "Z0123456789ABC"}, "tags": {"team": "platform"}},
    "new-zone": {"domain": DOMAIN, "zone": {"create": "example.com"}},
    "existing": {"domain": DOMAIN, "existing": {"arn": ARN}},
    "existing-with-zone": {
        "domain": DOMAIN,
        "existing": {"arn": ARN},
        "zone": {"id": "Z0123456789ABC"},
    },
}


@pytest.fixture(autouse=True)
def zone(cloud: Any) -> dict[str, Any]:
    found = {
        "id": "Z0123456789ABC",
        "zoneId": "Z0123456789ABC",
        "name": "example.com",
        "privateZone": False,
    }
    cloud.answers["aws:route53/getZone:getZone"] = found
    return found


def outputs(render: Any, args: dict[str, Any]) -> dict[str, Any]:
    def program() -> None:
        certificate = components.AwsCertificate("it", args)
        for output in ("arn", "zone_id", "domain", "name_servers"):
            pulumi.export(output, getattr(certificate, output))

    return render(program).outputs


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsCertificate", VARIANTS)


def test_the_domain_is_proven_in_the_zone(render: Any) -> None:
    graph = render(make("AwsCertificate", VARIANTS["zone"]))
    certificate = graph.one("Certificate").inputs
    assert (certificate["domainName"], certificate["validationMethod"]) == (DOMAIN, "DNS")
    record = graph.one("Record").inputs
    assert record["zoneId"] == "Z0123456789ABC"
    assert record["type"] == "CNAME"
    assert record["name"].endswith(f".{DOMAIN}.")
    assert len(record["records"]) == 1
    assert "it-validation" in graph.needs(graph.one("CertificateValidation"))


def test_who_uses_the_certificate_waits_until_it_is_issued(render: Any) -> None:
    def program() -> None:
        certificate = components.AwsCertificate("it", VARIANTS["zone"])
        aws.iot.Certificate("user", active=True, certificate_pem=certificate.arn)

    graph = render(program)
    [user] = [r for r in graph.resources if r.name == "user"]
    assert user.dependencies == {"it-validation"}


def test_a_zone_is_made_and_says_whom_to_delegate_to(render: Any) -> None:
    graph = render(make("AwsCertificate", VARIANTS["new-zone"]))
    assert graph.one("Zone").inputs["name"] == "example.com"
    found = outputs(render, VARIANTS["new-zone"])
    assert found["name_servers"] == [f"ns-{n}.example.net" for n in range(4)]
    assert found["zone_id"].startswith("Z")


def test_an_existing_certificate_is_used(render: Any) -> None:
    assert outputs(render, VARIANTS["existing"]) == {
        "arn": ARN,
        "zone_id": None,
        "domain": DOMAIN,
        "name_servers": [],
    }
    assert outputs(render, VARIANTS["existing-with-zone"])["zone_id"] == "Z0123456789ABC"
    graph = render(make("AwsCertificate", VARIANTS["existing-with-zone"]))
    assert not [r for r in graph.resources if r.custom]


def test_a_zone_of_another_domain_is_refused(refused: Any, zone: dict[str, Any]) -> None:
    zone["name"] = "ample.com"  # a suffix of the text and yet another domain
    assert "zone ample.com, without" in refused(make("AwsCertificate", VARIANTS["zone"]), "zone.id")


def test_a_private_zone_is_refused(refused: Any, zone: dict[str, Any]) -> None:
    zone["privateZone"] = True
    assert "public DNS only" in refused(make("AwsCertificate", VARIANTS["zone"]), "zone.id")


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"domain": "Models.example.com"}, "domain", "lower case"),
        ({"domain": "localhost"}, "domain", "domain name"),
        ({"domain": "models.example.com."}, "domain", "domain name"),
        ({"domain": f"{'a' * 64}.com"}, "domain", "domain name"),
        ({"zone": None}, "zone", "is needed"),
        ({"zone": {}}, "zone", "{create: domain}"),
        ({"zone": {"id": "example.com"}}, "zone.id", "Z0123456789ABC"),
        ({"zone": {"id": "Z0123456789ABC", "create": "example.com"}}, "zone.create", "beside id"),
        ({"zone": {"create": "example.org"}}, "zone", f"hold the domain {DOMAIN}"),
        ({"zone": {"create": "ample.com"}}, "zone", f"hold the domain {DOMAIN}"),
        ({"existing": {"arn": "arn:aws:iam::1:server-certificate/x"}}, "existing.arn", "ARN of a"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsCertificate", VARIANTS["zone"], **changes), path)
