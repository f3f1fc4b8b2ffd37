"""Networks, roles and keys: what is refused at Create, because of what exists."""

import pytest
from refusal import Case, refused_then_made
from standing import Standing, document

CASES: list[Case] = [
    (
        "aws:ec2/subnet:Subnet",
        lambda s: {"vpcId": s.vpc, "cidrBlock": "10.0.9.0/24"},
        lambda s: {"vpcId": "vpc-0", "cidrBlock": "10.0.9.0/24"},
        "InvalidVpcID.NotFound",
    ),
    (
        "aws:ec2/subnet:Subnet",
        lambda s: {"vpcId": s.vpc, "cidrBlock": "10.0.9.0/24"},
        lambda s: {"vpcId": s.vpc, "cidrBlock": "10.9.0.0/24"},
        "InvalidSubnet.Range",
    ),
    (
        "aws:ec2/subnet:Subnet",
        lambda s: {"vpcId": s.vpc, "cidrBlock": "10.0.9.0/24"},
        lambda s: {"vpcId": s.vpc, "cidrBlock": "10.0.0.128/25"},
        "InvalidSubnet.Conflict",
    ),
    (
        "aws:ec2/internetGateway:InternetGateway",
        lambda s: {"vpcId": s.other_vpc},
        lambda s: {"vpcId": s.vpc},
        "AlreadyAssociated",
    ),
    (
        "aws:ec2/natGateway:NatGateway",
        lambda s: {"subnetId": s.subnets[0], "allocationId": s.eip},
        lambda s: {"subnetId": s.other_subnets[0], "allocationId": s.eip},
        "Gateway.NotAttached",
    ),
    (
        "aws:ec2/natGateway:NatGateway",
        lambda s: {"subnetId": s.subnets[0], "allocationId": s.eip},
        lambda s: {"subnetId": s.subnets[0], "allocationId": "eipalloc-0"},
        "InvalidAllocationID.NotFound",
    ),
    (
        "aws:ec2/route:Route",
        lambda s: {
            "routeTableId": s.table,
            "destinationCidrBlock": "0.0.0.0/0",
            "gatewayId": s.gateway,
        },
        lambda s: {
            "routeTableId": s.table,
            "destinationCidrBlock": "0.0.0.0/0",
            "natGatewayId": "nat-0",
        },
        "InvalidNatGatewayID",
    ),
    (
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        lambda s: {"subnetId": s.subnets[0], "routeTableId": s.table},
        lambda s: {"subnetId": s.other_subnets[0], "routeTableId": s.table},
        "different networks",
    ),
    (
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        lambda s: {
            "securityGroupId": s.group,
            "ipProtocol": "-1",
            "referencedSecurityGroupId": s.group,
        },
        lambda s: {
            "securityGroupId": s.group,
            "ipProtocol": "-1",
            "referencedSecurityGroupId": s.other_group,
        },
        "different networks",
    ),
    (
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        lambda s: {"vpcId": s.vpc, "serviceName": "com.amazonaws.us-east-1.s3"},
        lambda s: {"vpcId": s.vpc, "serviceName": "com.amazonaws.us-east-1.s4"},
        "InvalidServiceName",
    ),
    (
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        lambda s: {"vpcId": s.vpc, "serviceName": "com.amazonaws.us-east-1.s3"},
        lambda s: {"vpcId": s.vpc, "serviceName": "com.amazonaws.eu-west-1.s3"},
        "InvalidServiceName",
    ),
    (
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        lambda s: {
            "vpcId": s.vpc,
            "serviceName": "com.amazonaws.us-east-1.sts",
            "vpcEndpointType": "Interface",
            "subnetIds": s.subnets,
        },
        lambda s: {
            "vpcId": s.vpc,
            "serviceName": "com.amazonaws.us-east-1.sts",
            "vpcEndpointType": "Interface",
            "privateDnsEnabled": True,
        },
        "DNS hostnames",
    ),
    (
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        lambda s: {
            "role": s.node_role.rsplit("/", 1)[1],
            "policyArn": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy",
        },
        lambda s: {
            "role": s.node_role.rsplit("/", 1)[1],
            "policyArn": "arn:aws:iam::aws:policy/AmazonEksWorkerNodePolicy",
        },
        "did you mean 'AmazonEKSWorkerNodePolicy'",
    ),
    (
        "aws:iam/rolePolicy:RolePolicy",
        lambda s: {"role": s.node_role.rsplit("/", 1)[1], "policy": document("s3:ListBucket")},
        lambda s: {"role": "nobody", "policy": document("s3:ListBucket")},
        "NoSuchEntity",
    ),
    (
        "aws:kms/alias:Alias",
        lambda s: {"targetKeyId": s.key},
        lambda s: {"targetKeyId": "nothing"},
        "NotFoundException",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_refused(standing: Standing, case: Case) -> None:
    refused_then_made(standing, case)
