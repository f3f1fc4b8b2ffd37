"""One stack reads the output of another as plain values, on the real engine."""

from harness import Engine, Stack

MAKER = """
import pulumi

config = pulumi.Config()
facts = {"version": 1, "postgres": {"host": "db.example.com", "port": 5432}}
if config.get_bool("secret"):
    facts["token"] = pulumi.Output.secret("hidden")
if not config.get_bool("silent"):
    pulumi.export("substrate", facts)
"""
READER = """
import pulumi
from terrace_blueprints.stack_outputs import read_output
from terrace_blueprints.substrates.contract import SubstrateError

try:
    facts = read_output("maker", "substrate")
except SubstrateError as error:
    raise pulumi.RunError(str(error)) from None
# A plain value decides, and is part of a name: an output could be neither.
if facts["postgres"]["port"] == 5432:
    pulumi.export("address_of_" + facts["postgres"]["host"], facts["postgres"])
"""


def reader(engine: Engine) -> Stack:
    return Stack.of_program(engine, "reader", READER)


def test_a_stack_that_is_not_there_is_named(engine: Engine) -> None:
    run = reader(engine).preview().must_fail()
    assert "there is no stack 'maker': run `pulumi up --stack maker` first" in run.errors
    assert "Traceback" not in run.output


def test_a_stack_that_was_never_updated_is_named(engine: Engine) -> None:
    maker = Stack.of_program(engine, "maker", MAKER, **{"trial:silent": "true"})
    stack = reader(engine)
    for run in (stack.preview(), stack.up()):
        assert "stack 'maker' has no output 'substrate' yet: run `pulumi up" in run.errors
    maker.up().must_work()  # of a program that exports something else
    assert "has no output 'substrate' yet" in stack.preview().must_fail().errors


def test_values_are_plain_in_preview_and_update(engine: Engine) -> None:
    Stack.of_program(engine, "maker", MAKER).up().must_work()
    stack = reader(engine)
    assert "address_of_db.example.com" in stack.preview().must_work().output
    stack.up().must_work()
    assert stack.outputs() == {
        "address_of_db.example.com": {"host": "db.example.com", "port": 5432}
    }
    stack.must_be_steady()
    references = [r for r in stack.resources() if r["type"] == "pulumi:pulumi:StackReference"]
    assert [r["id"] for r in references] == ["organization/trial/maker"]


def test_an_output_with_a_secret_in_it_is_refused(engine: Engine) -> None:
    Stack.of_program(engine, "maker", MAKER, **{"trial:secret": "true"}).up().must_work()
    run = reader(engine).preview().must_fail()
    assert "output 'substrate' of stack 'maker' is a secret" in run.errors
    assert "hidden" not in run.output
