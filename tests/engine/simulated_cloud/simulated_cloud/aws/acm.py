"""Certificates: validated when their records are in Route 53."""

import uuid
from collections.abc import Iterable
from typing import Final

from ..inventory import Item
from ..models import CloudError, Link, Problem
from ..rules import length, matches, one_of
from ..values import Properties, known
from ..world import World
from .model import ArnOf, AwsModel, digest

CERTIFICATE: Final = "aws:acm/certificate:Certificate"
_DOMAIN = r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}"


class Certificate(AwsModel):
    token = CERTIFICATE
    rules = (
        length("domainName", 1, 253),
        matches(
            "domainName",
            _DOMAIN,
            "a domain name in lower case, such as ai.example.com or *.example.com",
        ),
        matches("subjectAlternativeNames[]", _DOMAIN, "a domain name in lower case"),
        one_of("validationMethod", "DNS", "EMAIL"),
        one_of("keyAlgorithm", "RSA_2048", "RSA_3072", "RSA_4096", "EC_prime256v1", "EC_secp384r1"),
    )
    replace_on = frozenset(
        {
            "domainName",
            "subjectAlternativeNames",
            "validationMethod",
            "keyAlgorithm",
            "certificateAuthorityArn",
        }
    )

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        imported = inputs.get("privateKey") is not None or inputs.get("privateKeyWo") is not None
        if not imported and inputs.get("domainName") is None:
            yield Problem("domainName", "is required for a certificate that ACM issues")
        if (
            not imported
            and inputs.get("certificateAuthorityArn") is None
            and inputs.get("validationMethod") is None
        ):
            yield Problem("validationMethod", "is required: DNS or EMAIL")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return self.arn_in(world, "acm", f"certificate/{uuid.uuid4()}")

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        names = [inputs.get("domainName"), *(inputs.get("subjectAlternativeNames") or [])]
        domains = list(dict.fromkeys(name for name in names if name))
        validated = any(
            item["certificateArn"] == id for item in world.all(CertificateValidation.token)
        )
        imported = inputs.get("privateKey") is not None
        return {
            "arn": id,
            "subjectAlternativeNames": domains,
            "keyAlgorithm": inputs.get("keyAlgorithm") or "RSA_2048",
            "status": "ISSUED" if validated or imported else "PENDING_VALIDATION",
            "type": "IMPORTED" if imported else "AMAZON_ISSUED",
            "renewalEligibility": "INELIGIBLE",
            "domainValidationOptions": [validation_record(domain, world) for domain in domains],
        }

    def adopted(self, item: Item, world: World) -> None:
        item.outputs["status"] = "ISSUED"
        world.inventory.put(item)


def validation_record(domain: str, world: World) -> dict[str, str]:
    """The record that proves a domain; a wildcard has that of its parent."""
    bare = domain.removeprefix("*.")
    code = digest(world.place.account, bare, length=32)
    return {
        "domainName": domain,
        "resourceRecordName": f"_{code}.{bare}.",
        "resourceRecordType": "CNAME",
        "resourceRecordValue": f"_{digest(code, length=32)}.jkddzztszm.acm-validations.aws.",
    }


class CertificateValidation(AwsModel):
    """Waits until the certificate is issued: here, until its records are in the account's zones."""

    token = "aws:acm/certificateValidation:CertificateValidation"
    arns = (ArnOf("certificateArn", "acm", "certificate/.+", here=True),)
    links = (Link("certificateArn", CERTIFICATE, not_found="ResourceNotFoundException"),)
    replace_on = frozenset({"certificateArn", "validationRecordFqdns"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['certificateArn']}-validated"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        certificate = world.get(inputs["certificateArn"], CERTIFICATE)
        if certificate is None:
            return
        records = {
            (str(item["fqdn"]).rstrip("."), value.rstrip("."))
            for item in world.all("aws:route53/record:Record")
            for value in item["records"] or []
        }
        for option in certificate["domainValidationOptions"]:
            wanted = (
                option["resourceRecordName"].rstrip("."),
                option["resourceRecordValue"].rstrip("."),
            )
            if wanted not in records:
                raise CloudError(
                    "ValidationTimeout",
                    f"{option['domainName']} is still PENDING_VALIDATION after 75 minutes: there is"
                    f" no record {wanted[0]} with value {wanted[1]}",
                )
        for where, name in known(inputs, "validationRecordFqdns[]"):
            if name.rstrip(".") not in {record for record, _ in records}:
                raise CloudError("InvalidParameterValue", f"{where}: there is no record {name}")

    def created(self, item: Item, world: World) -> None:
        certificate = world.get(item["certificateArn"], CERTIFICATE)
        if certificate:
            certificate.outputs["status"] = "ISSUED"
            world.inventory.put(certificate)


def get_certificate(arguments: Properties, world: World) -> Properties:
    wanted = arguments.get("statuses") or ["ISSUED"]
    for item in world.all(CERTIFICATE):
        if item["domainName"] == arguments.get("domain") and item["status"] in wanted:
            return {
                **arguments,
                "id": item.id,
                "arn": item.id,
                "status": item["status"],
                "certificate": "",
                "certificateChain": "",
                "tags": item["tags"] or {},
                "region": world.place.region,
            }
    raise CloudError(
        "NotFound",
        f"no certificate for domain {arguments.get('domain')!r} found in {world.place.region}",
    )


MODELS = (Certificate, CertificateValidation)
FUNCTIONS = {"aws:acm/getCertificate:getCertificate": get_certificate}
