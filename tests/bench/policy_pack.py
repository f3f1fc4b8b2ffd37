"""What the policy pack adds to a preview: its start, and its answers for every resource.

    python tests/bench/policy_pack.py EXPORT [EXPORT ...]     (output of `pulumi stack export`)

Speaks to the pack as the engine does, one resource after the other, and prints seconds. A preview
waits for the start only as far as nothing else is slower: the engine loads providers meanwhile.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2 as messages
from pulumi.runtime.proto import analyzer_pb2_grpc as services

PACK = Path(__file__).resolve().parents[2] / "policies" / "terrace-policies"


def struct(tree: dict[str, Any]) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(tree)
    return made


def measure(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each part."""
    began = time.perf_counter()
    with subprocess.Popen([str(PACK), "127.0.0.1:1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = services.AnalyzerStub(channel)
            stub.GetAnalyzerInfo(empty_pb2.Empty())
            started = time.perf_counter()
            for entry in entries:
                stub.Analyze(
                    messages.AnalyzeRequest(
                        type=entry["type"], urn=entry["urn"],
                        name=entry["urn"].rpartition("::")[2],
                        properties=struct(entry.get("inputs") or {}),
                    )
                )  # fmt: skip
            analyzed = time.perf_counter()
            stub.AnalyzeStack(
                messages.AnalyzeStackRequest(resources=[
                    messages.AnalyzerResource(
                        type=entry["type"], urn=entry["urn"],
                        name=entry["urn"].rpartition("::")[2],
                        properties=struct(entry.get("outputs") or {}),
                    )
                    for entry in entries
                ])
            )  # fmt: skip
            ended = time.perf_counter()
        process.terminate()
    return {
        "start": started - began,
        "resources": analyzed - started,
        "stack": ended - analyzed,
        "all": ended - began,
    }


def main(files: list[str]) -> None:
    for file in files:
        document = json.loads(Path(file).read_text())
        entries = document["deployment"]["resources"]
        for turn in ("cold", "warm"):
            parts = ", ".join(f"{k} {v:.2f} s" for k, v in measure(entries).items())
            print(f"{Path(file).name} ({len(entries)} resources, {turn}): {parts}")


if __name__ == "__main__":
    main(sys.argv[1:])
