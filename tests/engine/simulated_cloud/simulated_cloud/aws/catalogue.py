"""Every AWS type and function that has a behaviour of its own."""

from collections.abc import Mapping
from typing import Final

from ..models import ResourceModel
from ..provider import Function
from . import (
    account,
    acm,
    bedrock,
    ec2,
    ecr,
    eks,
    elb,
    iam,
    kms,
    logs,
    rds,
    route53,
    s3,
    secrets_manager,
    sqs,
    waf,
)

_SERVICES: Final = (
    account,
    iam,
    kms,
    ec2,
    eks,
    rds,
    s3,
    ecr,
    elb,
    acm,
    route53,
    waf,
    logs,
    bedrock,
    secrets_manager,
    sqs,
)

MODELS: Final[dict[str, ResourceModel]] = {
    model.token: model() for service in _SERVICES for model in getattr(service, "MODELS", ())
}
FUNCTIONS: Final[Mapping[str, Function]] = {
    token: function
    for service in _SERVICES
    for token, function in getattr(service, "FUNCTIONS", {}).items()
}
