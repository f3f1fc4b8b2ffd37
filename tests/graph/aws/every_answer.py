"""An account in which every data source that any component asks has an answer."""

from typing import Any

from .bedrock_answers import answer_for_bedrock
from .cloud import ACCOUNT, PARTITION, REGION, ZONES, Cloud
from .eks_answers import answer_clusters, answer_databases

VPC = "vpc-0a1b2c3d"
PRIVATE = ["subnet-0000000a", "subnet-0000000b"]
PUBLIC = ["subnet-0000001a", "subnet-0000001b"]


def answer_everything(cloud: Cloud) -> Cloud:
    """One VPC with two private and two public subnets, and whatever else is asked for by name."""
    answer_databases(answer_clusters(cloud))
    answer_for_bedrock(cloud)
    cloud.answers["aws:ec2/getVpc:getVpc"] = {
        "id": VPC,
        "cidrBlock": "10.49.0.0/16",
        "cidrBlockAssociations": [
            {"cidrBlock": "10.49.0.0/16", "state": "associated"},
            {"cidrBlock": "10.50.0.0/16", "state": "associated"},
        ],
        "enableDnsSupport": True,
        "enableDnsHostnames": True,
    }
    cloud.set_subnets(
        VPC,
        {
            PRIVATE[0]: (ZONES[0], "10.50.0.0/20"),
            PRIVATE[1]: (ZONES[1], "10.50.16.0/20"),
            PUBLIC[0]: (ZONES[0], "10.50.240.0/24"),
            PUBLIC[1]: (ZONES[1], "10.50.241.0/24"),
        },
    )

    def service(args: dict[str, Any]) -> dict[str, Any]:
        name = args.get("serviceName") or f"com.amazonaws.{REGION}.{args['service']}"
        return {"id": name, "serviceName": name, "availabilityZones": ZONES}

    def bucket(args: dict[str, Any]) -> dict[str, Any]:
        name = args["bucket"]
        arn = f"arn:{PARTITION}:s3:::{name}"
        return {"id": name, "bucket": name, "arn": arn, "region": REGION}

    def zone(args: dict[str, Any]) -> dict[str, Any]:
        identity = args["zoneId"]
        return {"id": identity, "zoneId": identity, "name": "example.com", "privateZone": False}

    cloud.outputs["kubernetes:helm.sh/v3:Release"] = lambda _, inputs: {
        "status": {"name": inputs["name"], "status": "deployed"}
    }
    cloud.answers["aws:ec2/getVpcEndpointService:getVpcEndpointService"] = service
    cloud.answers["aws:s3/getBucket:getBucket"] = bucket
    cloud.answers["aws:route53/getZone:getZone"] = zone
    cloud.answers["aws:acm/getCertificate:getCertificate"] = {
        "arn": f"arn:{PARTITION}:acm:{REGION}:{ACCOUNT}:certificate/0a1b2c3d",
        "domain": "models.example.com",
        "status": "ISSUED",
    }
    return cloud
