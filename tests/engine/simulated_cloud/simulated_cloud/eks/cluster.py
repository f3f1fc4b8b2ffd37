"""The component `eks:index:Cluster` and the children it is assumed to make."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi

from ..inventory import Inventory
from .references import AWS_VERSION
from .settings import kubeconfig, nested


class Cluster(pulumi.ComponentResource):
    """Registers role, security group, EKS cluster, add-ons, access entries and OIDC provider, as
    the inputs ask."""

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Any],
        inventory: Inventory,
        options: pulumi.ResourceOptions | None,
    ) -> None:
        super().__init__("eks:index:Cluster", name, {}, options)
        self._name = name
        self._inputs = inputs
        self._inventory = inventory
        self._auto_mode = bool(nested(inputs, "autoMode", "enabled"))
        role_arn = self._role_arn()
        group = self._security_group()
        self._cluster = self._eks_cluster(role_arn, group)
        self._group = group
        vpc = self._output("vpcConfig")
        self._own_group_id = vpc.apply(lambda config: config["clusterSecurityGroupId"])
        self._group_id = (
            pulumi.Output.from_input(group.id) if group is not None else self._own_group_id
        )
        self._kubeconfig = pulumi.Output.all(
            self._output("name"),
            self._output("endpoint"),
            self._output("certificateAuthority"),
            self._output("region"),
        ).apply(lambda parts: kubeconfig(*parts))
        self._oidc = self._oidc_provider()
        self._kubernetes_provider()
        self._addons()
        self._access_entries()
        self.register_outputs(self.state())

    def state(self) -> dict[str, Any]:
        """The component's outputs, in the shapes that the SDK expects."""
        issuer = self._output("identities").apply(lambda found: found[0]["oidcs"][0]["issuer"])
        return {
            "kubeconfig": self._kubeconfig,
            "kubeconfigJson": self._kubeconfig.apply(json.dumps),
            "eksCluster": self._cluster,
            "clusterSecurityGroup": self._group,
            "clusterSecurityGroupId": self._group_id,
            "nodeSecurityGroupId": self._own_group_id,
            "clusterIngressRuleId": "",
            "instanceRoles": [],
            "defaultNodeGroupAsgName": "",
            "fargateProfileId": "",
            "fargateProfileStatus": "",
            "autoModeNodeRoleName": "",
            "oidcIssuer": issuer.apply(lambda url: url.removeprefix("https://")),
            "oidcProviderUrl": issuer,
            "oidcProviderArn": self._oidc.__dict__["arn"] if self._oidc is not None else "",
            "core": {
                "cluster": self._cluster,
                "endpoint": self._output("endpoint"),
                "instanceRoles": [],
                "kubeconfig": self._kubeconfig,
                "subnetIds": self._subnet_ids(),
                "vpcId": self._inputs["vpcId"],
            },
        }

    def _child(
        self,
        type: str,
        suffix: str,
        properties: Mapping[str, Any],
        outputs: tuple[str, ...] = (),
        *,
        reason: str,
        parent: pulumi.Resource | None = None,
        depends_on: list[pulumi.Resource] | None = None,
    ) -> pulumi.CustomResource:
        name = f"{self._name}-{suffix}"
        self._inventory.assume(self._name, type, name, reason)
        pulumi.log.info(f"assumed child of eks:index:Cluster: {type} {name} ({reason})", self)
        return pulumi.CustomResource(
            type,
            name,
            {**dict.fromkeys(outputs), **properties},
            pulumi.ResourceOptions(
                parent=parent or self, version=AWS_VERSION, depends_on=depends_on
            ),
        )

    def _role_arn(self) -> pulumi.Input[str]:
        role = self._inputs.get("serviceRole")
        if role is not None:
            return pulumi.Output.from_input(role).apply(
                lambda given: given.arn if hasattr(given, "arn") else given.__dict__["arn"]
            )
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "eks.amazonaws.com"},
                    "Action": ["sts:AssumeRole", "sts:TagSession"],
                }
            ],
        }
        made = self._child(
            "aws:iam/role:Role",
            "eksRole-role",
            {"assumeRolePolicy": json.dumps(trust), "tags": self._tags()},
            ("arn", "name"),
            reason="no serviceRole was given",
        )
        partition = made.__dict__["arn"].apply(lambda arn: arn.split(":")[1])
        self._child(
            "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
            "eksRole-4b490823",
            {
                "role": made.__dict__["name"],
                "policyArn": pulumi.Output.concat(
                    "arn:", partition, ":iam::aws:policy/AmazonEKSClusterPolicy"
                ),
            },
            reason="no serviceRole was given",
        )
        return made.__dict__["arn"]  # type: ignore[no-any-return]

    def _security_group(self) -> pulumi.CustomResource | None:
        given = self._inputs.get("clusterSecurityGroup")
        if given is not None or self._inputs.get("skipDefaultSecurityGroups") or self._auto_mode:
            return given
        reason = "skipDefaultSecurityGroups is not set"
        label = f"{self._name}-eksClusterSecurityGroup"
        group = self._child(
            "aws:ec2/securityGroup:SecurityGroup",
            "eksClusterSecurityGroup",
            {
                "vpcId": self._inputs["vpcId"],
                "revokeRulesOnDelete": True,
                "tags": {**self._tags(), "Name": label},
            },
            reason=reason,
        )
        self._child(
            "aws:ec2/securityGroupRule:SecurityGroupRule",
            "eksClusterInternetEgressRule",
            {
                "description": "Allow internet access.",
                "type": "egress",
                "fromPort": 0,
                "toPort": 0,
                "protocol": "-1",
                "cidrBlocks": ["0.0.0.0/0"],
                "securityGroupId": group.id,
            },
            reason=reason,
        )
        return group

    def _eks_cluster(
        self, role_arn: pulumi.Input[str], group: pulumi.CustomResource | None
    ) -> pulumi.CustomResource:
        given = self._inputs
        vpc = {
            "subnetIds": self._subnet_ids(),
            "securityGroupIds": [group.id] if group is not None else None,
            "endpointPrivateAccess": given.get("endpointPrivateAccess"),
            "endpointPublicAccess": given.get("endpointPublicAccess"),
            "publicAccessCidrs": given.get("publicAccessCidrs"),
        }
        network = {
            "serviceIpv4Cidr": given.get("kubernetesServiceIpAddressRange"),
            "ipFamily": given.get("ipFamily"),
        }
        if self._auto_mode:
            network["elasticLoadBalancing"] = {"enabled": True}
        key = given.get("encryptionConfigKeyArn")
        properties = {
            "name": given.get("name"),
            "roleArn": role_arn,
            "version": given.get("version"),
            "vpcConfig": _present(vpc),
            "kubernetesNetworkConfig": _present(network) or None,
            "encryptionConfig": (
                {"provider": {"keyArn": key}, "resources": ["secrets"]} if key is not None else None
            ),
            "accessConfig": (
                _present({"authenticationMode": given.get("authenticationMode")}) or None
            ),
            "enabledClusterLogTypes": given.get("enabledClusterLogTypes"),
            "upgradePolicy": given.get("upgradePolicy"),
            "deletionProtection": given.get("deletionProtection"),
            "bootstrapSelfManagedAddons": (
                False if self._auto_mode else given.get("bootstrapSelfManagedAddons")
            ),
            "computeConfig": (
                {"enabled": True, **(nested(given, "autoMode", "computeConfig") or {})}
                if self._auto_mode
                else None
            ),
            "storageConfig": {"blockStorage": {"enabled": True}} if self._auto_mode else None,
            "tags": {
                **self._tags(),
                "Name": f"{self._name}-eksCluster",
                **(given.get("clusterTags") or {}),
            },
        }
        outputs = (
            "name",
            "arn",
            "endpoint",
            "certificateAuthority",
            "identities",
            "vpcConfig",
            "region",
            "status",
            "version",
        )
        return self._child(
            "aws:eks/cluster:Cluster",
            "eksCluster",
            _present(properties),
            outputs,
            reason="the cluster itself",
        )

    def _kubernetes_provider(self) -> None:
        """The real one makes Kubernetes providers for its own objects; here there are none, so only
        the note remains."""
        self._inventory.assume(
            self._name,
            "pulumi:providers:kubernetes",
            f"{self._name}-provider",
            "not made here: no object uses it",
        )

    def _addons(self) -> None:
        given = self._inputs
        if given.get("vpcCniOptions") or given.get("useDefaultVpcCni") is False:
            options = given.get("vpcCniOptions") or {}
            settings = {**(options.get("configurationValues") or {})}
            if options.get("enableNetworkPolicy") is not None:
                settings["enableNetworkPolicy"] = str(options["enableNetworkPolicy"]).lower()
            self._addon(
                "vpc-cni",
                {"version": options.get("addonVersion"), "configurationValues": settings or None},
            )
        if not self._auto_mode and nested(given, "kubeProxyAddonOptions", "enabled") is not False:
            self._addon("kube-proxy", given.get("kubeProxyAddonOptions") or {})

    def _addon(self, addon: str, options: Mapping[str, Any]) -> None:
        settings = options.get("configurationValues")
        properties = {
            "clusterName": self._output("name"),
            "addonName": addon,
            "addonVersion": options.get("version"),
            "configurationValues": pulumi.Output.json_dumps(settings) if settings else None,
            "resolveConflictsOnCreate": options.get("resolveConflictsOnCreate") or "OVERWRITE",
            "resolveConflictsOnUpdate": options.get("resolveConflictsOnUpdate") or "OVERWRITE",
        }
        self._child(
            "aws:eks/addon:Addon", addon, _present(properties), reason=f"{addon} is not turned off"
        )

    def _access_entries(self) -> None:
        for key, entry in (self._inputs.get("accessEntries") or {}).items():
            made = self._child(
                "aws:eks/accessEntry:AccessEntry",
                key,
                _present(
                    {
                        "clusterName": self._output("name"),
                        "principalArn": entry["principalArn"],
                        "type": entry.get("type"),
                        "kubernetesGroups": entry.get("kubernetesGroups"),
                        "userName": entry.get("username"),
                        "tags": entry.get("tags"),
                    }
                ),
                reason="accessEntries",
            )
            for policy, association in (entry.get("accessPolicies") or {}).items():
                self._child(
                    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
                    f"{key}-{policy}",
                    {
                        "clusterName": self._output("name"),
                        "principalArn": entry["principalArn"],
                        "policyArn": association["policyArn"],
                        "accessScope": association["accessScope"],
                    },
                    reason="accessEntries",
                    depends_on=[made],
                )

    def _oidc_provider(self) -> pulumi.CustomResource | None:
        if not self._inputs.get("createOidcProvider"):
            return None
        issuer = self._output("identities").apply(lambda found: found[0]["oidcs"][0]["issuer"])
        return self._child(
            "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
            "oidcProvider",
            {"url": issuer, "clientIdLists": ["sts.amazonaws.com"]},
            ("arn",),
            reason="createOidcProvider",
        )

    def _subnet_ids(self) -> Any:
        given = self._inputs
        if given.get("subnetIds") is not None:
            return given["subnetIds"]
        both = [
            given[key]
            for key in ("publicSubnetIds", "privateSubnetIds")
            if given.get(key) is not None
        ]
        return pulumi.Output.all(*both).apply(lambda lists: [id for ids in lists for id in ids])

    def _output(self, name: str) -> pulumi.Output[Any]:
        value: pulumi.Output[Any] = self._cluster.__dict__[name]
        return value

    def _tags(self) -> dict[str, Any]:
        return dict(self._inputs.get("tags") or {})


def _present(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if value is not None}
