"""Bedrock's service quotas, read per region and published to the gateways as shared budgets."""

VERSION = "0.1.0"
