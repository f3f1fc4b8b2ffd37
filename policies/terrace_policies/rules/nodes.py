"""EC2 nodes: metadata service, machine images, disks, nested virtualisation."""

import re
from collections.abc import Iterator

from terrace_policies.checks import each, each_resource
from terrace_policies.model import Finding, Parameters, Reference, Rule, Says, Severity
from terrace_policies.resources import Node, Resource, Stack

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
INSTANCE = "aws:ec2/instance:Instance"
NODE_CLASS = "kubernetes:*:EC2NodeClass"
_MOVING = re.compile(r"latest|recommended", re.IGNORECASE)


def _metadata(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if resource.type == NODE_GROUP:
        if not resource.has("launchTemplate"):
            yield Finding("launchTemplate", "none, so the metadata hop limit is EKS's default of 2")
        return
    options = "spec.metadataOptions" if resource.kind == "EC2NodeClass" else "metadataOptions"
    if resource.get(f"{options}.httpTokens") != "required":
        yield Finding(f"{options}.httpTokens", "IMDSv1 is on; must be required")
    hops = "httpPutResponseHopLimit"
    if resource.get(f"{options}.{hops}", 2) != 1:
        yield Finding(f"{options}.{hops}", "must be 1, or a pod reads the node's credentials")


def _image(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if resource.type == NODE_GROUP:
        release = resource.get("releaseVersion")
        if release is None or _MOVING.search(str(release)):
            yield Finding("releaseVersion", "the AMI release is not pinned")
    elif resource.type in {TEMPLATE, INSTANCE}:
        path = "imageId" if resource.type == TEMPLATE else "ami"
        image = resource.get(path)
        if image is not None and _MOVING.search(str(image)):
            yield Finding(path, f"{image} moves on its own; name an AMI id")
    else:
        yield from each(resource.items("spec.amiSelectorTerms"), _alias)


def _alias(term: Node) -> Iterator[Says]:
    alias = term.get("alias")
    if alias is not None and _MOVING.search(str(alias)):
        yield Finding(f"{term.path}.alias", f"{alias} moves on its own; name a dated release")


def _disk(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    path = "spec.blockDeviceMappings" if resource.kind == "EC2NodeClass" else "blockDeviceMappings"
    devices = resource.items(path)
    if not devices:
        yield Finding(path, "no device is named, so the disk's encryption is left to the account")
    yield from each(devices, _device)


def _device(device: Node) -> Iterator[Says]:
    if str(device.get("ebs.encrypted", "false")).lower() != "true":
        yield Finding(f"{device.path}.ebs.encrypted", "must be true")


def _nested(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    templates = stack.of(TEMPLATE)

    def check(group: Resource) -> Iterator[Says]:
        for template in templates:
            used = any(
                stack.refers(group, f"launchTemplate.{key}", template) for key in ("id", "name")
            )
            if used and template.get("cpuOptions.nestedVirtualization") == "enabled":
                yield Finding(
                    "launchTemplate",
                    f"{template.name} asks for nested virtualisation, which managed node groups"
                    " ignore without an error: /dev/kvm will be missing",
                )

    yield from each_resource(stack.of(NODE_GROUP), check)


RULES = (
    Rule(
        id="node-metadata-closed",
        description="Nodes need IMDSv2 with a hop limit of 1",
        why="With a longer way a pod reads the node role's credentials from 169.254.169.254.",
        remediation="Use a launch template with metadataOptions {httpTokens: required,"
        " httpPutResponseHopLimit: 1}.",
        severity=Severity.CRITICAL,
        references=(
            Reference("CIS AWS Foundations 3.0", "5.6"),
            Reference("EKS Best Practices", "security: restrict access to the instance profile"),
        ),
        types=(TEMPLATE, NODE_GROUP, INSTANCE, NODE_CLASS),
        resource=_metadata,
    ),
    Rule(
        id="node-image-pinned",
        description="Nodes boot a pinned AMI release, no alias that moves",
        why="A new release arrives untested: v20260505 broke image pulls for all on @latest.",
        remediation="Set `nodes.ami_release_version`, or amiSelectorTerms alias al2023@v<date>.",
        severity=Severity.HIGH,
        references=(
            Reference("field report", "awslabs/amazon-eks-ami#2712"),
            Reference("NSA/CISA Kubernetes Hardening Guide", "upgrading and patching"),
        ),
        types=(TEMPLATE, NODE_GROUP, INSTANCE, NODE_CLASS),
        resource=_image,
    ),
    Rule(
        id="node-disk-encrypted",
        description="Disks of nodes are encrypted",
        why="Images, logs and emptyDir volumes of every pod lie on them.",
        remediation="Set ebs.encrypted to true on every blockDeviceMappings entry.",
        severity=Severity.MEDIUM,
        references=(Reference("CIS AWS Foundations 3.0", "2.2.1"),),
        types=(TEMPLATE, NODE_CLASS),
        resource=_disk,
    ),
    Rule(
        id="node-group-without-nested-virtualization",
        description="No managed node group is asked for nested virtualisation",
        why="The setting is dropped silently, and Kata pods fail long after the update.",
        remediation="Let Karpenter or a self-managed group make the Kata nodes.",
        severity=Severity.HIGH,
        references=(Reference("field report", "aws/containers-roadmap#2784"),),
        stack=_nested,
    ),
)
