"""Models in force that the gateway was not started with, and the way back from that."""

from terrace_cli.gateway_admin import Document, GatewayAdmin, RefusedError

NOT_DEPLOYED = "model-not-deployed"
VERSIONS_LOOKED_AT = 20


def undeployed_problem(admin: GatewayAdmin) -> str | None:
    """A sentence with the cure, or ``None`` while every model in force can be called.

    Looks for the newest earlier version whose models are deployed only where something is wrong.
    Raises ``CliError`` where the gateway cannot be asked.
    """
    answer = admin.models()
    away, models = list(answer.get("not_deployed", ())), answer["models"]
    if not away:
        return None
    number = int(answer["governance_version"])
    of = f"of governance version {number}"
    what = f"{len(away)} of the {len(models)} models {of} cannot be called"
    if len(away) == len(models):
        what = f"No model {of} can be called"
    return (
        f"{what}: the gateway was not started with {_listed(away)}. {_way_back(admin, number)}name"
        " the file in terrace:governanceFile and deploy it with `terrace up`."
    )


def _way_back(admin: GatewayAdmin, number: int) -> str:
    for version in admin.governance_versions(VERSIONS_LOOKED_AT):
        older = int(version["version"])
        if older >= number:
            continue
        codes = _blocking(admin, older)
        if codes is None or NOT_DEPLOYED in codes:
            continue
        allow = "".join(f" --allow {code}" for code in codes)
        return f"Go back with `terrace governance rollback {older} --reason WHY{allow}`, or "
    return "To put that right, "


def _blocking(admin: GatewayAdmin, version: int) -> list[str] | None:
    """What going back to a version would need; ``None``: its text is not valid any more."""
    text = str(admin.governance(version)["text"])
    try:
        plan: Document = admin.plan_governance(text)
    except RefusedError:
        return None
    return sorted({str(f["code"]) for f in plan["findings"] if f["blocking"]})


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
