"""The program of the policy tests: registers the pack's fixtures, as anybody's program might.

Reads ``cases.json``: a list of cases, each a list of {name, type, properties}. Resources of case 7
are named ``c7-<name>``, and the namespace ``trial`` is ``trial-7``, so that cases do not meet.
"""

SOURCE = r"""
import json, re
import pulumi

REFERENCE = re.compile(r"\$\{([a-z0-9-]+)\.([A-Za-z]+)\}")
KUBECONFIG = json.dumps({"clusters": [{"name": "c", "cluster": {"server": "https://here:6443"}}]})


class Made(pulumi.CustomResource):
    def __init__(self, kind, name, properties, opts=None):
        outputs = {"arn": None, "name": None} if kind.startswith("aws:") else {}
        super().__init__(kind, name, {**outputs, **properties}, opts)


def value(given, case, made):
    if isinstance(given, dict):
        return {key: value(item, case, made) for key, item in given.items()}
    if isinstance(given, list):
        return [value(item, case, made) for item in given]
    if given == "trial":
        return f"trial-{case}"
    if not isinstance(given, str) or not (found := REFERENCE.fullmatch(given)):
        return given
    other = made[found[1]]
    return other.id if found[2] == "id" else getattr(other, found[2])


provider = pulumi.ProviderResource(
    "kubernetes", "here", {"kubeconfig": KUBECONFIG, "clusterIdentifier": "here"}
)
for case, examples in enumerate(json.load(open("cases.json"))):
    made = {}
    for example in examples:
        kubernetes = example["type"].startswith("kubernetes:")
        opts = pulumi.ResourceOptions(provider=provider) if kubernetes else None
        made[example["name"]] = Made(
            example["type"], f"c{case}-{example['name']}",
            value(example["properties"], case, made), opts,
        )
"""
