"""The pack as a process, started as the engine and as Pulumi's Python host start it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2 as messages
from pulumi.runtime.proto import analyzer_pb2_grpc as services

from terrace_policies.book import rules

POLICIES = Path(__file__).resolve().parents[3] / "policies"
ENGINE = "127.0.0.1:1"  # nobody: the pack does not call back
# The engine runs the executable; the host runs the directory named by PulumiPolicy.yaml.
STARTS = {
    "executable": [str(POLICIES / "terrace-policies"), ENGINE, str(POLICIES)],
    "directory": [sys.executable, "-u", "-m", "pulumi.policy", ENGINE, str(POLICIES)],
}


@contextmanager
def pack(start: str) -> Iterator[tuple[subprocess.Popen[str], services.AnalyzerStub]]:
    with subprocess.Popen(STARTS[start], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield process, services.AnalyzerStub(channel)
        process.terminate()


@pytest.mark.parametrize("start", STARTS)
def test_it_serves_and_ends_when_told_to(start: str) -> None:
    with pack(start) as (process, stub):
        info = stub.GetAnalyzerInfo(empty_pb2.Empty())
        assert [policy.name for policy in info.policies] == [rule.id for rule in rules()]
        kind = "aws:kms/key:Key"
        request = messages.AnalyzeRequest(type=kind, name="k", urn=f"urn:pulumi:a::b::{kind}::k")
        (diagnostic,) = stub.Analyze(request).diagnostics
        assert diagnostic.policyName == "key-rotated"
    assert process.returncode == 0


def test_the_directory_says_what_it_is() -> None:
    document = yaml.safe_load((POLICIES / "PulumiPolicy.yaml").read_text())
    assert document["runtime"] == "python"
    with pack("executable") as (_, stub):
        info = stub.GetAnalyzerInfo(empty_pb2.Empty())
    assert (info.name, info.version) == (document["name"], document["version"])


def test_without_a_python_that_has_it_the_executable_says_so(tmp_path: Path) -> None:
    script = tmp_path / "policies" / "terrace-policies"
    script.parent.mkdir()
    script.write_text((POLICIES / "terrace-policies").read_text())
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(script)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "name a Python in TERRACE_POLICY_PYTHON" in done.stderr


@pytest.mark.parametrize("module", ["admission", "book", "checking", "documentation", "fixtures"])
def test_only_the_pack_needs_pulumi(module: str) -> None:
    program = f"import sys, terrace_policies.{module}; print('pulumi' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
