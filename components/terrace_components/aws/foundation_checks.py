"""Parts of a substrate that are right alone and cannot work together."""

from collections.abc import Iterable

import pulumi

from terrace_components.aws.add_on_settings import AddOnSettings, Toleration
from terrace_components.aws.certificate import CertificateSettings
from terrace_components.aws.network_settings import NONE, NetworkSettings
from terrace_components.aws.node_settings import NodeSettings, Taint
from terrace_components.aws.vpc_endpoints import STAGE_ONE

BALANCERS = "elasticloadbalancing"
# Models may have another way, and not every stack has a load balancer.
NOT_FOR_ALL = ("bedrock-runtime", BALANCERS)
# Without these no node becomes ready, no name is found and no pod has credentials.
FROM_THE_START = ("vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent")


def check_ways_to_aws(network: NetworkSettings, *, balanced: bool = False) -> None:
    """Raises InputPropertyError if a VPC without NAT lacks an endpoint that nodes need, or with
    ``balanced`` the one that the load balancer's controller calls."""
    if network.existing is not None or network.nat != NONE:
        return
    needed = [BALANCERS] if balanced else [s for s in sorted(STAGE_ONE) if s not in NOT_FOR_ALL]
    for service in needed:
        if not any(e == service or e.endswith(f".{service}") for e in network.services):
            raise pulumi.InputPropertyError(
                "network.endpoints",
                f"must have {service} with nat: none ({STAGE_ONE[service]}); left out, all that "
                "stage 1 calls are made",
            )


def check_add_ons(add_ons: AddOnSettings) -> None:
    """Raises InputPropertyError if a new cluster would come up without a part it starts with."""
    for add_on in add_ons.skip:
        if add_on in FROM_THE_START:
            raise pulumi.InputPropertyError(
                "add_ons.skip",
                f"cannot have {add_on} on a new cluster, where nobody else can install it before "
                "the nodes start; valid: metrics-server, aws-ebs-csi-driver",
            )


def check_taints(nodes: NodeSettings, add_ons: AddOnSettings) -> None:
    """Raises InputPropertyError if the add-ons cannot run on the Core nodes."""
    refused = untolerated(nodes.taints, add_ons.tolerations)
    if refused is not None:
        raise pulumi.InputPropertyError(
            "nodes.taints",
            f"has {refused.key}={refused.value}:{refused.effect}, which add_ons.tolerations does "
            "not tolerate: CoreDNS would run nowhere. Add it there",
        )


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps away a pod with these tolerations, by Kubernetes' rules."""
    allowed = list(tolerations)
    for taint in taints:
        keeps_away = taint.effect != "PreferNoSchedule"
        if keeps_away and not any(_tolerates(one, taint) for one in allowed):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in {None, taint.effect}:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def check_name(domain: str, certificate: CertificateSettings) -> None:
    """Raises InputPropertyError if a certificate that is made is for another name. One that exists
    may have more names than are known here."""
    if certificate.existing is None and domain != certificate.domain:
        raise pulumi.InputPropertyError(
            "load_balancer.domain",
            f"must be certificate.domain, {certificate.domain}, the only name of the certificate "
            f"that is made; got {domain}",
        )


def check_partition(admins: Iterable[str], partition: str) -> None:
    """Raises InputPropertyError if an admin is of another partition than the cluster."""
    for admin in admins:
        if admin.split(":")[1] != partition:
            raise pulumi.InputPropertyError(
                "cluster.admins", f"must be of partition {partition}, as the cluster is; {admin}"
            )
