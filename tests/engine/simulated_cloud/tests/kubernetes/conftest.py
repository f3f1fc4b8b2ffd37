"""Two clusters: somebody's, which takes everything, and one of the simulated EKS."""

import sys
from pathlib import Path

import pytest

# Modules that several test files share; --import-mode=importlib puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from kubernetes_api import SERVER, Api, add, thing

from simulated_cloud.inventory import Inventory
from simulated_cloud.kubernetes.clusters import Cluster


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_CLOUD_PATIENCE", "0")
    monkeypatch.delenv("SIMULATED_CLOUD_JOBS", raising=False)


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """Somebody's cluster with a namespace `app`."""
    inventory = Inventory(tmp_path)
    api = Api(inventory, Cluster(inventory, "https://somebody:6443", "somebody"))
    api.create(thing("Namespace", "app"))
    return api


@pytest.fixture
def eks(tmp_path: Path) -> Api:
    """A cluster of the simulated EKS without nodes, with a namespace `app`."""
    inventory = Inventory(tmp_path)
    network = {
        "vpcId": "vpc-1",
        "endpointPrivateAccess": True,
        "endpointPublicAccess": True,
        "publicAccessCidrs": ["1.2.3.0/24"],
        "clusterSecurityGroupId": "sg-1",
        "securityGroupIds": ["sg-own"],
    }
    add(
        inventory,
        "aws:eks/cluster:Cluster",
        "main",
        {"name": "main", "endpoint": SERVER, "vpcConfig": network},
    )
    add(inventory, "aws:ec2/vpc:Vpc", "vpc-1", {"cidrBlock": "10.0.0.0/16"})
    api = Api(inventory, Cluster(inventory, SERVER, "main"))
    api.create(thing("Namespace", "app"))
    return api
