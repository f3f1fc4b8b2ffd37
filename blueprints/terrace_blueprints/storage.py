"""The storage class of a substrate whose cluster has none that fits."""

import pulumi
import pulumi_kubernetes as k8s

from terrace_blueprints.substrates.contract import EBS_CLASS, Substrate


def ebs_class(
    substrate: Substrate, opts: pulumi.ResourceOptions
) -> k8s.storage.v1.StorageClass | None:
    """Encrypted gp3 volumes of EBS, made where their pod runs; ``None`` on other substrates.

    EKS brings a class of its own only for the old gp2, unencrypted unless the account says so.
    """
    if not substrate.objects.ebs:
        return None
    return k8s.storage.v1.StorageClass(
        EBS_CLASS,
        metadata={"name": EBS_CLASS},
        provisioner="ebs.csi.aws.com",
        parameters={"type": "gp3", "encrypted": "true"},
        # A volume stands in one zone for good: the pod's place comes first.
        volume_binding_mode="WaitForFirstConsumer",
        allow_volume_expansion=True,
        reclaim_policy="Delete",
        opts=opts,
    )
