"""terrace-policies.yaml: what it may weaken, and what it must say for that."""

from pathlib import Path

import pytest
from policy_trials import TODAY, broken, check, configured, resource

from terrace_policies.book import rules
from terrace_policies.configuration import (
    RULE_ID,
    Configuration,
    find_configuration,
    read_configuration,
)
from terrace_policies.evaluation import Evaluation, configuration_results
from terrace_policies.model import Level
from terrace_policies.resources import Stack

KEY = "aws:kms/key:Key"
STACK = Stack([resource(KEY, "signing"), resource(KEY, "backup")])
TRIAL = "trial: {stacks: [trial], reason: An evaluation, expires: 2027-05-01}"
GOOD = "reason: The vendor rotates it, expires: 2027-05-01"


def exempt(entry: str, section: str = "exemptions") -> Configuration:
    return configured(f"version: 1\n{section}:\n  - {{{entry}}}\n")


def test_without_a_configuration_nothing_is_weakened() -> None:
    results = check(STACK)
    assert [(r.rule.id, r.level) for r in results] == [("key-rotated", Level.MANDATORY)] * 2


@pytest.mark.parametrize(
    "name",
    ["aws:kms/key:Key::signing", "urn:pulumi:*::aws:kms/key:Key::signing", "aws:kms/*::sign*"],
)
def test_one_resource_is_exempted_and_others_are_not(name: str) -> None:
    configuration = exempt(f'rule: key-rotated, resource: "{name}", {GOOD}')
    assert configuration.problems == []
    assert [r.resource.name for r in check(STACK, configuration) if r.resource] == ["backup"]
    assert list(configuration.unused("trial")) == []


def test_a_rule_is_made_advisory() -> None:
    configuration = exempt(f"rule: key-rotated, {GOOD}", "advisory")
    assert {r.level for r in check(STACK, configuration)} == {Level.ADVISORY}
    assert list(configuration.unused("trial")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule: key-rotated, resource: a, expires: 2027-01-01", "exemptions[0].reason: required"),
        ('rule: key-rotated, resource: a, reason: " ", expires: 2027-01-01', "reason: required"),
        ("rule: key-rotated, resource: a, reason: why", "expires: required"),
        ("rule: key-rotated, resource: a, reason: w, expires: soon", "expires: required"),
        ("rule: key-rotated, resource: a, reason: w, expires: 2026-11-29", "expired on 2026-11-29"),
        ("rule: key-rotated, resource: a, reason: w, expires: 2028-01-01", "at most 2027-12-01"),
        (f"rule: key-rotated, {GOOD}", "resource: required"),
        (f"rule: no-such, resource: a, {GOOD}", "no such rule; valid: bedrock-logs-encrypted"),
        (f"rule: {RULE_ID}, resource: a, {GOOD}", "cannot be weakened"),
        (f"rule: key-rotated, resource: a, until: 1, {GOOD}", "unknown key; valid keys: expires"),
        (
            "rule: key-rotated, resource: a, reason: w, expires: 2027-01-01 00:00:00",
            "required: the",
        ),
        (f"rule: [a], resource: a, {GOOD}", "no such rule"),
        (f"rule: key-rotated, resource: a, stacks: prod, {GOOD}", "must be a list of stack names"),
    ],
)
def test_an_entry_that_is_wrong_is_a_violation_and_has_no_effect(text: str, said: str) -> None:
    configuration = exempt(text)
    assert any(said in problem for problem in configuration.problems), configuration.problems
    assert len(check(STACK, configuration)) == 2
    evaluation = Evaluation(rules(), configuration)
    (result, *_) = configuration_results(evaluation, "trial")
    assert (result.rule.id, result.level) == (RULE_ID, Level.MANDATORY)


@pytest.mark.parametrize("end", ["2026-11-30", "2027-12-01"])
def test_the_first_and_the_last_day_that_may_be_named(end: str) -> None:
    entry = f"rule: key-rotated, resource: 'aws:kms/key:Key::*signing', reason: w, expires: {end}"
    assert exempt(entry).problems == []


def test_an_advisory_entry_takes_no_resource() -> None:
    configuration = exempt(f"rule: key-rotated, resource: a, {GOOD}", "advisory")
    assert "under `exemptions`" in configuration.problems[0]


def test_an_entry_of_no_use_is_a_violation() -> None:
    configuration = exempt(f"rule: key-rotated, resource: 'aws:kms/key:Key::gone', {GOOD}")
    evaluation = Evaluation(rules(), configuration)
    for item in STACK.resources:
        evaluation.check_resource(item)
    evaluation.check_stack(STACK)
    (result,) = configuration_results(evaluation, "trial")
    assert result.level is Level.MANDATORY
    assert "nothing violates key-rotated at aws:kms/key:Key::gone any more" in result.text


def test_an_entry_for_another_stack_is_neither_used_nor_missed() -> None:
    text = f"rule: key-rotated, resource: 'aws:kms/key:Key::*signing', stacks: [prod*], {GOOD}"
    configuration = exempt(text)
    assert broken(check(STACK, configuration)) == {"key-rotated"}
    assert list(configuration.unused("trial")) == []
    assert list(configuration.unused("prod-1"))


def test_parameters_are_used() -> None:
    balancer = Stack([
        resource("aws:lb/loadBalancer:LoadBalancer", "b", internal=True, idleTimeout=300,
                 dropInvalidHeaderFields=True),
    ])  # fmt: skip
    assert broken(check(balancer)) == {"load-balancer-fits-streams"}
    why = "reason: Answers are short here, expires: 2027-05-01"
    text = "version: 1\nparameters: {{load-balancer-fits-streams: {{seconds: {}}}}}\n"
    explained = configured(text.format(f"{{value: 300, {why}}}"))
    assert explained.problems == []
    assert check(balancer, explained) == []
    # A stricter value needs no reason.
    assert configured(text.format("900")).problems == []
    for given in ("300", "{value: 300}", f"{{value: 30, {why}}}", f"{{value: 300, a: 1, {why}}}"):
        refused = configured(text.format(given))
        assert refused.problems
        assert broken(check(balancer, refused)) == {"load-balancer-fits-streams"}


def test_a_trial_may_be_deleted() -> None:
    database = Stack([
        resource("aws:rds/cluster:Cluster", "d", storageEncrypted=True, skipFinalSnapshot=True,
                 manageMasterUserPassword=True, backupRetentionPeriod=1),
    ])  # fmt: skip
    assert broken(check(database)) == {"database-deletion-protected", "database-backups-kept"}
    assert check(database, configured(f"version: 1\n{TRIAL}\n")) == []
    other = TRIAL.replace("trial]", "other]")
    assert len(check(database, configured(f"version: 1\n{other}\n"))) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2\n", "version: must be 1"),
        ("version: 1\ntrial: maybe\n", "trial: must be false or a mapping with the keys expires"),
        ("version: 1\ntrial: true\n", "trial: must be false or a mapping with the keys expires"),
        ("version: 1\ntrial: {}\n", "trial.reason: required"),
        ("version: 1\ntrial: {}\n", "trial.expires: required"),
        ("version: 1\ntrial: {reason: a, expires: 2027-01-01}\n", "trial.stacks: required"),
        ("version: 1\ntrial: {stacks: ['*']}\n", "trial.stacks: required"),
        ("version: 1\ntrial: {all: 1}\n", "trial.all: unknown key"),
        ("version: 1\nexempt: []\n", "exempt: unknown key; valid keys: advisory"),
        ("version: 1\nadvisory: all\n", "advisory: must be a list"),
        ("version: 1\nexemptions: [all]\n", "exemptions[0]: must be a mapping"),
        ("version: 1\nparameters: []\n", "parameters: must be a mapping"),
        ("version: 1\nparameters: {no-such: {}}\n", "parameters.no-such: no such rule"),
        ("version: 1\nparameters: {logs-expire: {days: 1}}\n", "valid: longest-days"),
        ("version: 1\nparameters: {key-rotated: {days: 1}}\n", "the rule has no parameters"),
        ("version: 1\nparameters: {logs-expire: {longest-days: a}}\n", "must be a int"),
        ("- a list\n", "must be a mapping"),
        ("a: [\n", "not YAML"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(text: str, said: str) -> None:
    if text.startswith("version: 1\nparameters: []"):
        text = "version: 1\nparameters: [a]\n"
    problems = configured(text).problems
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("policies.yaml: ") for problem in problems)


def test_the_file_is_found_by_name_by_environment_or_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TERRACE_POLICY_CONFIG", raising=False)
    assert not find_configuration(rules(), TODAY).trial
    (folder / "terrace-policies.yaml").write_text(f"version: 1\n{TRIAL}\n")
    assert find_configuration(rules(), TODAY).trial
    (folder / "other.yaml").write_text("version: 1\n")
    monkeypatch.setenv("TERRACE_POLICY_CONFIG", "other.yaml")
    assert not find_configuration(rules(), TODAY).trial
    assert find_configuration(rules(), TODAY, "terrace-policies.yaml").trial
    (problem,) = find_configuration(rules(), TODAY, "absent.yaml").problems
    assert problem == f"absent.yaml: there is no {folder / 'absent.yaml'}"


def test_the_file_is_found_above_the_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERRACE_POLICY_CONFIG", raising=False)
    project = tmp_path / "project"
    (project / "program").mkdir(parents=True)
    (tmp_path / "terrace-policies.yaml").write_text(f"version: 1\n{TRIAL}\n")
    (project / "Pulumi.yaml").write_text("name: trial\n")
    monkeypatch.chdir(project / "program")
    # Not the one above the project: that is of somebody else.
    assert not find_configuration(rules(), TODAY).trial
    (project / "terrace-policies.yaml").write_text(f"version: 1\n{TRIAL}\n")
    assert find_configuration(rules(), TODAY).trial


def test_a_relative_name_counts_from_the_project_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine starts the pack in the program's folder; the command was typed above it."""
    project = tmp_path / "project"
    for folder in ("program/policies", "policies"):
        (project / folder).mkdir(parents=True)
    (project / "Pulumi.yaml").write_text("name: trial\n")
    (project / "policies/mine.yaml").write_text(f"version: 1\n{TRIAL}\n")
    (tmp_path / "not-mine.yaml").write_text(f"version: 1\n{TRIAL}\n")
    monkeypatch.setenv("TERRACE_POLICY_CONFIG", "policies/mine.yaml")
    monkeypatch.chdir(project / "program")
    assert find_configuration(rules(), TODAY).trial
    (project / "program/policies/mine.yaml").write_text("version: 1\n")
    assert not find_configuration(rules(), TODAY).trial
    (problem,) = find_configuration(rules(), TODAY, "not-mine.yaml").problems
    looked = [project / "program/not-mine.yaml", project / "not-mine.yaml"]
    assert problem == f"not-mine.yaml: there is no {looked[0]} and no {looked[1]}"


def test_a_date_is_read_as_yaml_reads_it() -> None:
    entry = f"rule: key-rotated, resource: 'aws:kms/key:Key::signing', {GOOD}"
    text = f"version: 1\nexemptions: [{{{entry}}}]"
    assert read_configuration(text, "x", rules(), TODAY).problems == []


@pytest.mark.parametrize(
    "name",
    ["*", "*::*", "a", "*::signing", "urn:pulumi:*::signing", "aws:*::signing", "aws:kms/*::*",
     "aws:kms/key:Key::*a*", "aws:kms/key:Key::", "aws:kms/key:Key::[a-z]*", "*:*::signing"],
)  # fmt: skip
def test_an_exemption_names_a_type_and_a_name(name: str) -> None:
    configuration = exempt(f'rule: key-rotated, resource: "{name}", {GOOD}')
    assert any("is too wide" in problem for problem in configuration.problems)
    assert len(check(STACK, configuration)) == 2


@pytest.mark.parametrize(
    ("rule", "parameter", "value"),
    [
        ("pod-image-pinned", "immutable-registries", "['']"),
        ("pod-image-pinned", "immutable-registries", "[docker]"),
        ("pod-image-pinned", "immutable-registries", "[1]"),
        ("database-connections-fit", "percent", "100000"),
        ("database-backups-kept", "days", "0"),
        ("load-balancer-fits-streams", "seconds", "0"),
        ("logs-expire", "longest-days", "99999"),
        ("model-residency", "allowed-regions", "['*', global]"),
        ("service-not-exposed", "allowed-node-ports", "[22]"),
        ("service-not-exposed", "allowed-node-ports", "['30400']"),
        ("no-fixed-names", "allowed", "[[a]]"),
    ],
)
def test_a_parameter_has_bounds(rule: str, parameter: str, value: str) -> None:
    given = f"{{value: {value}, reason: why, expires: 2027-01-01}}"
    text = f"version: 1\nparameters: {{{rule}: {{{parameter}: {given}}}}}\n"
    configuration = configured(text)
    (problem,) = configuration.problems
    assert f"parameters.{rule}.{parameter}: " in problem
    assert parameter not in configuration.parameters[rule]


def test_every_default_is_within_its_bounds() -> None:
    for rule in rules():
        for parameter in rule.parameters.values():
            assert parameter.problem(parameter.default) == ""
            assert not parameter.weakens(parameter.default)


def test_a_date_that_does_not_exist_is_said() -> None:
    assert "not YAML" in exempt("rule: key-rotated, expires: 2027-13-45").problems[0]
