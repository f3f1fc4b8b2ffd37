"""Look-ups of clusters, their versions and add-on versions."""

from ...inventory import Item
from ...models import CloudError
from ...values import Properties
from ...world import World
from .addons import DEFAULT_VERSIONS
from .cluster import CLUSTER, VERSIONS


def _cluster(name: str, world: World) -> Item:
    found = world.get(name, CLUSTER)
    if found is None:
        raise CloudError("ResourceNotFoundException", f"no cluster found for name: {name}")
    return found


def get_cluster(arguments: Properties, world: World) -> Properties:
    item = _cluster(arguments["name"], world)
    network = item["kubernetesNetworkConfig"]
    return {
        "id": item.id,
        "name": item.id,
        "arn": item.arn,
        "endpoint": item["endpoint"],
        "version": item["version"],
        "status": "ACTIVE",
        "roleArn": item["roleArn"],
        "platformVersion": item["platformVersion"],
        "clusterId": "",
        "createdAt": item["createdAt"],
        "certificateAuthorities": [item["certificateAuthority"]],
        "accessConfigs": [item["accessConfig"]],
        "identities": item["identities"],
        "vpcConfig": item["vpcConfig"],
        "kubernetesNetworkConfigs": [
            {
                "ipFamily": network["ipFamily"],
                "serviceIpv4Cidr": network["serviceIpv4Cidr"],
                "serviceIpv6Cidr": "",
                "elasticLoadBalancings": [],
            }
        ],
        "enabledClusterLogTypes": item["enabledClusterLogTypes"] or [],
        "deletionProtection": item["deletionProtection"],
        "upgradePolicies": [item["upgradePolicy"]],
        "tags": item["tagsAll"] or item["tags"] or {},
        "computeConfigs": [],
        "controlPlaneScalingConfigs": [],
        "kubeApiServerConfigs": [],
        "kubeControllerManagerConfigs": [],
        "kubeSchedulerConfigs": [],
        "outpostConfigs": [],
        "remoteNetworkConfigs": [],
        "storageConfigs": [],
        "zonalShiftConfigs": [],
        "region": world.place.region,
    }


def get_cluster_auth(arguments: Properties, world: World) -> Properties:
    item = _cluster(arguments["name"], world)
    return {
        **arguments,
        "id": item.id,
        "token": "k8s-aws-v1.simulated",
        "region": world.place.region,
    }


def get_clusters(arguments: Properties, world: World) -> Properties:
    return {
        **arguments,
        "id": world.place.region,
        "names": [item.id for item in world.all(CLUSTER)],
        "region": world.place.region,
    }


def get_cluster_versions(arguments: Properties, world: World) -> Properties:
    wanted = arguments.get("clusterVersionsOnlies") or list(VERSIONS)
    found = [
        {
            "clusterVersion": version,
            "clusterType": "eks",
            "defaultPlatformVersion": "eks.9",
            "defaultVersion": version == VERSIONS[-1],
            "versionStatus": "STANDARD_SUPPORT",
            "status": "standard-support",
            "kubernetesPatchVersion": f"{version}.4",
            "endOfStandardSupportDate": "2027-03-01T00:00:00Z",
            "endOfExtendedSupportDate": "2028-03-01T00:00:00Z",
            "releaseDate": "2026-01-01T00:00:00Z",
        }
        for version in reversed(VERSIONS)
        if version in wanted
    ]
    return {**arguments, "clusterVersions": found, "region": world.place.region}


def get_addon_version(arguments: Properties, world: World) -> Properties:
    name = arguments["addonName"]
    if name not in DEFAULT_VERSIONS:
        raise CloudError(
            "ResourceNotFoundException",
            f"no versions of add-on {name!r}; valid: {', '.join(sorted(DEFAULT_VERSIONS))}",
        )
    return {
        **arguments,
        "id": name,
        "version": DEFAULT_VERSIONS[name],
        "region": world.place.region,
    }


FUNCTIONS = {
    "aws:eks/getCluster:getCluster": get_cluster,
    "aws:eks/getClusters:getClusters": get_clusters,
    "aws:eks/getClusterAuth:getClusterAuth": get_cluster_auth,
    "aws:eks/getClusterVersions:getClusterVersions": get_cluster_versions,
    "aws:eks/getAddonVersion:getAddonVersion": get_addon_version,
}
