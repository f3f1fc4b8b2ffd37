"""The policy pack in real previews: each bad fixture is blocked, the good ones pass."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from fresh_checkout import check_out, shell
from harness import Cloud, Engine, Platform, Run, Stack
from policy_program import SOURCE
from test_local_and_existing_stacks import existing_stack, local_stack, substrate_file

from terrace_policies.book import find_rule
from terrace_policies.checking import check_state
from terrace_policies.configuration import Configuration
from terrace_policies.fixtures import Case, cases

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "policies" / "terrace-policies"
# These compare a stack with its one catalogue, so each of their bad cases is a stack of its own.
OF_A_CATALOGUE = {"bedrock-models-listed", "model-residency"}


def stack_of(engine: Engine, name: str, wanted: Sequence[Case]) -> Stack:
    stack = Stack.of_program(engine, name, SOURCE, **{"aws:region": "us-east-1"})
    document = [
        [{"name": e.name, "type": e.type, "properties": e.properties} for e in case.examples]
        for case in wanted
    ]
    (stack.folder / "cases.json").write_text(json.dumps(document))
    return stack


def policy_events(run: Run) -> list[dict[str, Any]]:
    return [event["policyEvent"] for event in run.events if "policyEvent" in event]


def broken_rules(run: Run, count: int) -> list[set[str]]:
    """Per case, the rules that it was said to break; "unchecked" is not broken."""
    found: list[set[str]] = [set() for _ in range(count)]
    for event in policy_events(run):
        name = event.get("resourceUrn", "").rpartition("::")[2]
        if "unchecked: " not in event["message"] and name.startswith("c"):
            found[int(name[1:].partition("-")[0])].add(event["policyName"])
    return found


def test_every_bad_fixture_is_blocked(engine: Engine) -> None:
    wanted = [case for case in cases() if not case.good and case.rule not in OF_A_CATALOGUE]
    run = stack_of(engine, "bad", wanted).preview("--policy-pack", str(PACK)).must_fail()
    found = broken_rules(run, len(wanted))
    wrong = [
        (case.rule, [e.change for e in case.examples if e.shown], said)
        for case, said in zip(wanted, found, strict=True)
        if said != {case.rule}
    ]
    assert not wrong, run.errors
    for event in policy_events(run):
        rule = find_rule(event["policyName"])
        assert rule is not None
        if "unchecked: " in event["message"]:
            assert event["enforcementLevel"] == "advisory"
        else:
            assert event["enforcementLevel"] == rule.level.value
            assert rule.remediation in event["message"]


@pytest.mark.parametrize("rule", sorted(OF_A_CATALOGUE))
def test_bad_fixtures_about_the_catalogue_are_blocked(engine: Engine, rule: str) -> None:
    for index, case in enumerate(c for c in cases() if c.rule == rule and not c.good):
        stack = stack_of(engine, f"bad-{index}", [case])
        run = stack.preview("--policy-pack", str(PACK)).must_fail()
        assert broken_rules(run, 1) == [{rule}]


def test_good_fixtures_pass_and_what_is_unknown_is_reported(engine: Engine) -> None:
    wanted = [case for case in cases() if case.good]
    run = stack_of(engine, "good", wanted).preview("--policy-pack", str(PACK)).must_work()
    assert broken_rules(run, len(wanted)) == [set() for _ in wanted]


def test_an_exemption_lets_pass_and_an_expired_one_does_not(engine: Engine) -> None:
    bad = next(c for c in cases() if c.rule == "key-rotated" and not c.good)
    stack = stack_of(engine, "exempt", [bad])
    today = datetime.now(UTC).date()
    settings = stack.folder / "terrace-policies.yaml"

    def preview_until(days: int) -> Run:
        entry = {
            "rule": "key-rotated",
            "resource": "aws:kms/key:Key::c0-key",
            "reason": "Only a trial",
            "expires": today + timedelta(days=days),
        }
        settings.write_text(yaml.safe_dump({"version": 1, "exemptions": [entry]}))
        return stack.preview("--policy-pack", str(PACK))

    stack.preview("--policy-pack", str(PACK)).must_fail()
    preview_until(30).must_work()
    run = preview_until(-1).must_fail()
    names = {event["policyName"] for event in policy_events(run)}
    assert names == {"key-rotated", "policy-configuration"}
    assert "expired on" in run.output


def test_a_value_unknown_at_the_preview_is_checked_on_the_state(engine: Engine) -> None:
    source = """
import pulumi, pulumi_aws as aws
first = aws.kms.Key("first", enable_key_rotation=True)
policy = first.arn.apply(lambda arn: pulumi.Output.json_dumps({"Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "kms:*", "Resource": arn}]}))
aws.iam.Policy("late", policy=policy)
"""
    stack = Stack.of_program(engine, "late", source, **{"aws:region": "us-east-1"})
    run = stack.preview("--policy-pack", str(PACK)).must_work()
    unchecked = [e for e in policy_events(run) if e["policyName"] == "iam-no-wildcard-actions"]
    assert [e["enforcementLevel"] for e in unchecked] == ["advisory"]
    assert (
        "unchecked: iam-no-wildcard-actions: late: policy is unknown until the update"
        in (unchecked[0]["message"])
    )
    stack.up().must_work()
    report = check_state(json.dumps({"deployment": stack.export()}), "export", Configuration())
    assert {result.rule.id for result in report.violations} == {"iam-no-wildcard-actions"}
    assert report.unchecked == []


def of_level(run: Run, level: str) -> list[str]:
    return [e["message"] for e in policy_events(run) if e["enforcementLevel"] == level]


@pytest.mark.parametrize("settings", ["aws-private", "aws-existing-vpc"])
def test_the_first_preview_on_aws_passes(tmp_path: Path, settings: str) -> None:
    substrate = Platform.new(tmp_path, settings).substrate
    run = substrate.preview("--policy-pack", str(PACK)).must_work()
    assert of_level(run, "mandatory") == []
    # Documents that name what does not exist yet; nothing else is advisory.
    assert of_level(run, "advisory")
    assert all("unchecked: " in message for message in of_level(run, "advisory"))


def test_a_disposable_platform_is_for_trials_only(nothing_yet: Platform) -> None:
    substrate = nothing_yet.substrate
    run = substrate.preview("--policy-pack", str(PACK)).must_fail()
    mandatory = [e for e in policy_events(run) if e["enforcementLevel"] == "mandatory"]
    assert {event["policyName"] for event in mandatory} == {"database-deletion-protected"}
    settings = substrate.folder / "trial.yaml"
    settings.write_text(
        "version: 1\ntrial: {stacks: ['*stage1*'], reason: A trial, expires: 2027-11-29}\n"
    )
    given = {**substrate.engine.extra, "TERRACE_POLICY_CONFIG": str(settings)}
    trial = replace(substrate, engine=replace(substrate.engine, extra=given))
    trial.preview("--policy-pack", str(PACK)).must_work()


def test_both_stacks_on_aws_pass_as_they_stand(stage_one: Platform) -> None:
    for stack in (stage_one.substrate, stage_one.platform):
        run = stack.preview("--policy-pack", str(PACK)).must_work()
        assert [event["message"] for event in policy_events(run)] == []
        report = check_state(json.dumps({"deployment": stack.export()}), "export", Configuration())
        assert report.resources > 100
        assert [result.text for result in (*report.violations, *report.unchecked)] == []


@pytest.mark.parametrize(("make", "settings"), [
    (local_stack, "local.yaml"), (existing_stack, "existing.yaml"),
])  # fmt: skip
def test_our_stacks_elsewhere_pass_with_their_settings(
    tmp_path: Path, cloud: Cloud, make: Callable[[Engine], Stack], settings: str
) -> None:
    environment = {"TERRACE_POLICY_CONFIG": str(ROOT / "policies" / settings)}
    stack = make(Engine(tmp_path / "machine", cloud, environment))
    run = stack.preview("--policy-pack", str(PACK)).must_work()
    assert of_level(run, "mandatory") == []


def written_commands() -> list[str]:
    """The commands that run the pack on stacks without a cloud, as docs and files give them."""
    page = (ROOT / "docs/policies.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exported = next(block for block in blocks if "pulumi preview" in block).splitlines()[0]
    listed = re.findall(r"^pulumi preview .*$", page, re.MULTILINE)
    files = [(ROOT / "policies" / f"{name}.yaml").read_text() for name in ("local", "existing")]
    headers = [command for text in files for command in re.findall(r"^# (TERRACE_.*)$", text, re.M)]
    return [*(f"{exported}\n{command}" for command in listed), *headers]


def test_the_commands_of_the_page_run_as_they_are_written(engine: Engine, tmp_path: Path) -> None:
    clone = check_out(tmp_path / "terrace")
    # The passphrase that the committed settings of stack `local` belong to.
    environment = {**engine.environment, "PULUMI_CONFIG_PASSPHRASE": "terrace-local"}
    setting = f"terrace:substrateFile {substrate_file(engine)}"
    existing_stack(engine)  # for its kubeconfig; the backend then has the stack as well
    made = shell(f"pulumi stack init local\npulumi config set {setting}", clone, environment)
    assert made.returncode == 0, made.stdout
    commands = written_commands()
    assert len(commands) == 3
    for command in commands:
        done = shell(command, clone, environment)
        assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}"
        assert re.search(r"Policies:\n\s+.*terrace", done.stdout), done.stdout[-4000:]
