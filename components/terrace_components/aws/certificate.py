"""A certificate for the gateway's name, and the DNS zone that proves it."""

from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import AfterValidator, Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from terrace_components.arguments import Arguments, LateArgumentError, late
from terrace_components.aws import arns
from terrace_components.aws.arguments import CertificateArn, Tags, ZoneId, domain_name

VALIDATION_TTL = 300


class ZoneArgs(TypedDict):
    """The public DNS zone of the domain: one that exists, or a new one."""

    id: NotRequired[pulumi.Input[str]]
    """Route 53's id of a public zone that exists, such as ``Z0123456789ABC``."""
    create: NotRequired[str]
    """Domain of a zone to make. The certificate is issued once the parent domain delegates to
    ``name_servers``: until then the first ``up`` waits."""


class ExistingCertificateArgs(TypedDict):
    """A certificate that exists."""

    arn: pulumi.Input[str]
    """Its ARN, in the load balancer's region."""


class AwsCertificateArgs(TypedDict):
    """Arguments of ``AwsCertificate``."""

    domain: str
    """Name that clients call, such as ``models.example.com``."""
    existing: NotRequired[ExistingCertificateArgs]
    """A certificate for ``domain`` that exists, instead of a new one."""
    zone: NotRequired[ZoneArgs]
    """Zone of the domain; needed to make a certificate, and for a DNS record of the load
    balancer."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class Zone(Arguments):
    """Checked ``ZoneArgs``."""

    id: ZoneId | None = None
    create: Annotated[str, AfterValidator(domain_name)] | None = None

    @field_validator("create")
    @classmethod
    def _not_beside_id(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("id") is not None:
            raise ValueError("cannot be given beside id: the zone exists or is made")
        return value


class ExistingCertificate(Arguments):
    """Checked ``ExistingCertificateArgs``."""

    arn: CertificateArn


class CertificateSettings(Arguments):
    """Checked arguments that no other part gives."""

    domain: Annotated[str, AfterValidator(domain_name)]
    existing: ExistingCertificate | None = None
    zone: Annotated[Zone | None, Field(validate_default=True)] = None

    @field_validator("zone")
    @classmethod
    def _zone_of_the_domain(cls, value: Zone | None, info: ValidationInfo) -> Zone | None:
        if value is None:
            if info.data.get("existing") is None:
                raise ValueError(
                    "is needed to prove the domain: {id: ...} of a zone that exists or "
                    "{create: domain}; or give existing"
                )
            return None
        if value.id is None and value.create is None:
            raise ValueError("must be {id: ...} of a zone that exists or {create: domain}")
        domain = info.data.get("domain", "")
        if value.create is not None and not _within(domain, value.create):
            raise ValueError(f"must hold the domain {domain}; {value.create} does not")
        return value


class _AwsCertificate(CertificateSettings):
    tags: Tags = Field(default_factory=dict)


class AwsCertificate(pulumi.ComponentResource):
    """A certificate that AWS renews, proven by a DNS record, or one that exists.

    Creates: a zone (where asked for); a certificate, its validation record, and the wait for its
    being issued, unless it exists.
    """

    arn: pulumi.Output[str]
    """ARN of the certificate; known when it is issued."""
    zone_id: pulumi.Output[str | None]
    """Id of the domain's zone; none where no zone was given."""
    domain: pulumi.Output[str]
    """The domain."""
    name_servers: pulumi.Output[list[str]]
    """Of a zone that was made: what the parent domain must delegate to. Else empty."""

    def __init__(
        self,
        name: str,
        args: AwsCertificateArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsCertificate", name, None, opts)
        self._given = given = _AwsCertificate.of(args)
        self._child = pulumi.ResourceOptions(parent=self)
        self.domain = pulumi.Output.from_input(given.domain)
        self.name_servers = pulumi.Output.from_input([])
        zone_id = None if given.zone is None else self._zone(name, given.zone)
        self.zone_id = pulumi.Output.from_input(zone_id)
        if given.existing is not None:
            self.arn = pulumi.Output.from_input(given.existing.arn)
        elif zone_id is not None:  # as is checked
            self.arn = self._make(name, zone_id)
        self.register_outputs(
            {
                "arn": self.arn,
                "zoneId": self.zone_id,
                "domain": self.domain,
                "nameServers": self.name_servers,
            }
        )

    def _zone(self, name: str, given: Zone) -> pulumi.Output[str]:
        if given.create is not None:
            zone = aws.route53.Zone(
                f"{name}-zone",
                name=given.create,
                comment="Terrace",
                tags=arns.tags(name, self._given.tags),
                opts=self._child,
            )
            self.name_servers = zone.name_servers.apply(list)
            return zone.zone_id
        zone = aws.route53.get_zone_output(
            zone_id=given.id, opts=pulumi.InvokeOutputOptions(parent=self)
        )
        return late(zone, "zone.id").apply(lambda found: _checked_zone(self._given.domain, found))

    def _make(self, name: str, zone_id: pulumi.Output[str]) -> pulumi.Output[str]:
        certificate = aws.acm.Certificate(
            f"{name}-certificate",
            domain_name=self._given.domain,
            validation_method="DNS",
            tags=arns.tags(name, self._given.tags),
            opts=self._child,
        )
        # One domain, so one record; ACM makes up what is in it.
        proof = certificate.domain_validation_options.apply(lambda options: options[0])
        record = aws.route53.Record(
            f"{name}-validation",
            zone_id=zone_id,
            name=proof.apply(lambda p: str(p.resource_record_name)),
            type=proof.apply(lambda p: str(p.resource_record_type)),
            records=[proof.apply(lambda p: str(p.resource_record_value))],
            ttl=VALIDATION_TTL,
            allow_overwrite=True,  # another certificate for the name has the same record
            opts=self._child,
        )
        return aws.acm.CertificateValidation(
            f"{name}-validation",
            certificate_arn=certificate.arn,
            validation_record_fqdns=[record.fqdn],
            opts=self._child,
        ).certificate_arn


def _within(domain: str, zone: str) -> bool:
    return domain == zone or domain.endswith(f".{zone}")


def _checked_zone(domain: str, zone: "aws.route53.GetZoneResult") -> str:
    """Raises ``LateArgumentError`` if the zone cannot prove ``domain``."""
    if zone.private_zone:
        raise LateArgumentError(
            "zone.id", f"{zone.zone_id} is a private zone: ACM reads public DNS only"
        )
    if not _within(domain, zone.name.rstrip(".")):
        raise LateArgumentError(
            "zone.id", f"{zone.zone_id} is the zone {zone.name.rstrip('.')}, without {domain}"
        )
    return zone.zone_id
