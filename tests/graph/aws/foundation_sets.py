"""Arguments of ``FoundationAws``: the smallest, with a load balancer, on what exists, and sets that
together pass every key."""

import copy
import typing
from typing import Any

import pulumi

import terrace_components as components
from terrace_components.aws.web_acl import BODY_RULES

from .cloud import ACCOUNT, PARTITION, REGION
from .every_answer import PRIVATE, PUBLIC, VPC

KEY = f"arn:{PARTITION}:kms:{REGION}:{ACCOUNT}:key/0a1b2c3d-0000-4000-8000-000000000000"
SECRET = f"arn:{PARTITION}:secretsmanager:{REGION}:{ACCOUNT}:secret:theirs-a1b2c3"
CERTIFICATE = f"arn:{PARTITION}:acm:{REGION}:{ACCOUNT}:certificate/0a1b2c3d"
WAF: dict[str, Any] = {
    "rate_limit": 5000, "rule_groups": sorted(BODY_RULES), "count_only": True
}  # fmt: skip
SMALLEST: dict[str, Any] = {"cluster": {"api_access_cidrs": ["203.0.113.0/24"]}}
BALANCER: dict[str, Any] = {
    "certificate": {"domain": "models.example.com", "existing": {"arn": CERTIFICATE}},
    "load_balancer": {
        "allowed_cidrs": ["10.0.0.0/8"], "target_port": 8080, "health_path": "/readyz"
    },
}  # fmt: skip
NETWORK: dict[str, Any] = {
    "existing": {"vpc_id": VPC, "cidr": "10.50.0.0/16", "private_subnet_ids": PRIVATE}
}
DATABASE: dict[str, Any] = {
    "existing": {
        "host": "db.example.com", "master_secret_arn": SECRET, "max_connections": 500,
        "open_to_cluster": True,
    }
}  # fmt: skip
ALL_EXISTING: dict[str, Any] = {
    "network": NETWORK,
    "cluster": {"existing": {"name": "theirs"}},
    "database": DATABASE,
    "objects": {"existing": {"name": "their-bucket"}},
}


VARIANTS: dict[str, dict[str, Any]] = {
    "new": {
        "cluster": {
            "api_access_cidrs": ["203.0.113.0/24"],
            "private_api_cidrs": ["10.60.0.0/16"],
            "api_client_security_group_ids": ["sg-0a1b2c3d"],
            "admins": [f"arn:aws:iam::{ACCOUNT}:role/Admin"],
            "kubernetes_version": "1.34",
            "support": "EXTENDED",
            "service_cidr": "192.168.0.0/20",
            "log_types": ["audit"],
            "log_retention_days": 365,
            "deletion_protection": False,
        },
        "network": {
            "cidr": "10.60.0.0/16",
            "zones": [f"{REGION}b", f"{REGION}c"],
            "nat": "shared",
            "public_subnets": True,
            "endpoints": ["ecr.api"],
            "pods": 500,
            "flow_logs": True,
            "flow_log_retention_days": 30,
        },
        "keys": {
            "captures": True,
            "existing": {"images": KEY},
            "deletion_window_days": 7,
            "retain": False,
        },
        "add_ons": {
            "kubernetes_version": "1.34",
            "versions": {"kube-proxy": "v1.34.6-eksbuild.25"},
            "skip": ["metrics-server"],
            "network_policy": False,
            "prefix_delegation": False,
            "tolerations": [
                {"key": "core", "operator": "Equal", "value": "yes", "effect": "NoExecute"}
            ],
        },
        "nodes": {
            "kubernetes_version": "1.34",
            "ami_release_version": "1.34.9-20260911",
            "instance_types": ["x2gd.2xlarge"],
            "instance_capacity": {
                "vcpus": 8, "memory_gib": 128, "network_interfaces": 4,
                "addresses_per_interface": 15, "arm64": True,
            },
            "min_size": 4,
            "max_size": 9,
            "autoscaled": True,
            "reserve": {"cpu": "3", "memory": "4Gi", "pods": 12},
            "prefix_delegation": False,
            "disk_gib": 100,
            "labels": {"terrace.dev/nodes": "other"},
            "taints": [{"key": "core", "value": "yes", "effect": "NoExecute"}],
        },
        "database": {
            "client_security_group_ids": ["sg-0a1b2c3d"],
            "engine_version": "16.11",
            "min_capacity": 2,
            "max_capacity": 32,
            "instances": 3,
            "max_connections": 700,
            "database_name": "other",
            "backup_days": 7,
            "log_retention_days": 30,
            "deletion_protection": False,
            "final_snapshot": False,
        },
        "objects": {
            "object_lock_days": 30,
            "object_lock_mode": "GOVERNANCE",
            "lifecycle_days": 400,
            "noncurrent_days": 60,
            "retain": False,
            "delete_objects": True,
        },
        "registry": {"repositories": ["gateway"], "keep_images": 7, "force_delete": True},
        "certificate": {"domain": "models.example.com", "zone": {"create": "example.com"}},
        "load_balancer": {
            "internal": False,
            "allowed_cidrs": ["0.0.0.0/0"],
            "domain": "models.example.com",
            "target_port": 8080,
            "health_path": "/readyz",
            "health_port": 9090,
            "idle_timeout_seconds": 1800,
            "deregistration_delay_seconds": 300,
            "tls_policy": "ELBSecurityPolicy-TLS13-1-2-2021-06",
            "waf": WAF,
            "deletion_protection": True,
            "access_log_days": 30,
        },
        "tags": {"team": "platform"},
    },
    "private": {
        "cluster": {"private_api": True, "private_api_cidrs": ["10.20.0.0/16"]},
        "network": {"zone_count": 2, "nat": "none"},
        **BALANCER,
        "load_balancer": {**BALANCER["load_balancer"], "access_log_bucket": "their-logs"},
    },
    "existing": {
        "network": {
            "existing": {
                "vpc_id": VPC,
                "cidr": "10.50.0.0/16",
                "private_subnet_ids": PRIVATE,
                "public_subnet_ids": PUBLIC,
            },
            "pods": 100,
        },
        "cluster": {"existing": {"name": "theirs"}, "admins": [f"arn:aws:iam::{ACCOUNT}:role/A"]},
        "database": {
            "existing": {
                "host": "db.example.com",
                "port": 5433,
                "master_secret_arn": SECRET,
                "master_secret_key_arn": KEY,
                "max_connections": 500,
                "security_group_id": "sg-0d0d0d0d",
            }
        },
        "objects": {"existing": {"name": "their-bucket"}},
        "certificate": {"domain": "models.example.com", "existing": {"arn": CERTIFICATE},
                        "zone": {"id": "Z0123456789ABC"}},
        "nodes": {"min_size": 3},
    },
    "existing-open": {**SMALLEST, "database": DATABASE},
}  # fmt: skip


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for part in parts:
        for key, value in copy.deepcopy(part).items():
            args[key] = {**args[key], **value} if isinstance(args.get(key), dict) else value
    return args


def make(*parts: dict[str, Any], name: str = "it") -> Any:
    args = merged(*parts)
    return lambda: components.FoundationAws(name, typing.cast(Any, args))


def exported(*parts: dict[str, Any]) -> Any:
    def program() -> None:
        made = make(*parts)()
        for output in components.FoundationAws.__annotations__:
            pulumi.export(output, getattr(made, output))

    return program
