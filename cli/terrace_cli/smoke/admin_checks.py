"""The checks of `terrace smoke` that change something as an administrator does, and see it hold."""

from typing import Any

import yaml

from terrace_cli.output import counted
from terrace_cli.smoke.bench import CHAT_MODEL, EMBEDDINGS_MODEL, Bench, Check, CheckFailedError
from terrace_cli.smoke.refusals import chat_with, let_through, refused_everywhere

_OVERLAP_SECONDS = 600


def _revoked_key(bench: Bench) -> str:
    made = bench.new_key("smoke to be revoked", models=[CHAT_MODEL])
    call = chat_with(bench, made["key"])
    call()
    bench.admin.revoke_key(made["key_id"], "smoke")
    return refused_everywhere(call, 401, "invalid_api_key")


def _rotated_key(bench: Bench) -> str:
    made = bench.new_key("smoke to be rotated", models=[CHAT_MODEL])
    call = chat_with(bench, made["key"])
    call()
    second = bench.admin.rotate_key(made["key_id"], overlap_seconds=_OVERLAP_SECONDS)
    for secret in (made["key"], second["key"]):
        let_through(chat_with(bench, secret))
    third = bench.admin.rotate_key(made["key_id"], overlap_seconds=0)
    let_through(chat_with(bench, third["key"]))
    seen = refused_everywhere(chat_with(bench, second["key"]), 401, "invalid_api_key")
    if {second["key_id"], third["key_id"]} != {made["key_id"]}:
        raise CheckFailedError("a rotated key is another key")
    return f"both secrets in the overlap, then {seen} for the old one"


def _kill_switch(bench: Bench) -> str:
    made = bench.new_key("smoke to be stopped", models=[CHAT_MODEL])
    call, target = chat_with(bench, made["key"]), f"key:{made['key_id']}"
    call()
    bench.admin.switch(target, reason="smoke", kill=True)
    try:
        seen = refused_everywhere(call, 403, "killed")
    finally:
        bench.admin.switch(target, reason="smoke is over", kill=False)
    let_through(call)
    return f"{seen}, then let through again"


def _plan(bench: Bench) -> str:
    in_force = bench.admin.governance()
    same = bench.admin.plan_governance(in_force["text"])
    if not same["same"] or same["changes"] or same["blocking"]:
        raise CheckFailedError(f"the version in force is not its own equal: {same['changes']}")
    planned = bench.admin.plan_governance(_without(in_force["text"], EMBEDDINGS_MODEL))
    changes = [change for change in planned["changes"] if change["name"] == EMBEDDINGS_MODEL]
    if not changes:
        raise CheckFailedError(f"removing a model is not in the plan: {planned['changes']}")
    if bench.admin.governance()["version"] != in_force["version"]:
        raise CheckFailedError("a plan changed the version in force")
    findings = counted(len(planned["findings"]), "finding")
    return f"no change for the version in force; a model less: {changes[0]['action']}, {findings}"


def _audit(bench: Bench) -> str:
    answer = bench.admin.verify_ledger()
    seen = f"{counted(answer['entries'], 'row')} in {counted(answer['chains'], 'chain')}"
    if not answer["whole"]:
        raise CheckFailedError(f"{seen}: {answer['findings'][:3]}")
    if not answer["entries"]:
        raise CheckFailedError(f"{seen}: nothing to verify")
    return seen


def _without(text: str, model: str) -> str:
    document: dict[str, Any] = yaml.safe_load(text)
    document["models"] = [one for one in document["models"] if one["name"] != model]
    return yaml.safe_dump(document)


ADMIN_CHECKS = (
    Check(name="revoked key", expected="401 invalid_api_key", run=_revoked_key),
    Check(name="rotated key", expected="old and new, then new only", run=_rotated_key),
    Check(name="kill and unkill", expected="403 killed, then an answer", run=_kill_switch),
    Check(name="governance plan", expected="what would change, unchanged", run=_plan),
)
AUDIT_CHECK = Check(name="audit verify", expected="the ledger is whole", run=_audit)
