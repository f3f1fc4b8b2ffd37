"""Pulumi's lines, as people want to read them; the samples are what Pulumi 3.274 printed."""

import pytest

from terrace_cli.pulumi_progress import diagnostics, readable


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (" +  kubernetes:core/v1:Namespace terrace-gateway creating (0s) ", None),
        (" +  kubernetes:core/v1:Namespace ns created (0.12s) ", "created Namespace ns (0.12s)"),
        (
            " ~  kubernetes:apps/v1:Deployment gateway updated (12s) [diff: ~spec]",
            "updated Deployment gateway (12s)",
        ),
        (
            " -  pulumi-python:dynamic:Resource slow deleted (0.00s) ",
            "deleted Resource slow (0.00s)",
        ),
        (" +- kubernetes:batch/v1:Job j replaced (3s) ", "replaced Job j (3s)"),
        (
            " +  kubernetes:apps/v1:Deployment g creating (3s) [1/2] Waiting for app ReplicaSet",
            "Deployment g: [1/2] Waiting for app ReplicaSet",
        ),
        (
            " +  kubernetes:apps/v1:Deployment g **creating failed** error: x",
            "creating failed Deployment g",
        ),
        (
            " ~  kubernetes:apps/v1:Deployment g updating (3s) [diff: ~spec]; warning: [Pod x]: y",
            "Deployment g: [Pod x]: y",
        ),
        (" ~  kubernetes:apps/v1:Deployment g updating (3s) [diff: ~spec];", None),
        (" +  pulumi:pulumi:Stack terrace-local created (8s) ", None),
        ("    pulumi:pulumi:Stack terrace-local  ", None),
        ("Updating (local):", None),
        ("    3 unchanged", "3 unchanged"),
        ("    2 changes. 2 unchanged", "2 changes. 2 unchanged"),
        ("Duration: 9s", None),
        (
            " +  pulumi:providers:kubernetes cluster creating (0s) warning: using "
            "pulumi-resource-kubernetes from $PATH at /x/pulumi-resource-kubernetes",
            None,
        ),
        ("", None),
    ],
)
def test_a_line(line: str, sentence: str | None) -> None:
    assert readable(line) == sentence


def test_diagnostics_keep_the_reason_and_drop_the_frames() -> None:
    lines = [
        "Updating (local):",
        "Diagnostics:",
        "  pulumi:pulumi:Stack (terrace-local):",
        "    error: Program failed with an unhandled exception:",
        "    Traceback (most recent call last):",
        '      File "/x/__main__.py", line 3, in <module>',
        "    ValueError: what matters",
        "",
        "Outputs:",
        "  not this",
    ]
    assert diagnostics(lines) == [
        "pulumi:pulumi:Stack (terrace-local):",
        "error: Program failed with an unhandled exception:",
        "ValueError: what matters",
    ]


def test_diagnostics_drop_what_pulumi_always_says() -> None:
    lines = [
        "Diagnostics:",
        "  pulumi:providers:kubernetes (cluster):",
        "    warning: using pulumi-resource-kubernetes from $PATH at /x/pulumi-resource-kubernetes",
        "",
        "  pulumi:pulumi:Stack (terrace-local):",
        "    error: Pulumi.local.yaml: terrace:stage: 'x' is no stage; valid: 1, 2, 3",
        "    error: an unhandled error occurred: program exited with non-zero exit code: 1",
    ]
    assert diagnostics(lines) == [
        "pulumi:pulumi:Stack (terrace-local):",
        "error: Pulumi.local.yaml: terrace:stage: 'x' is no stage; valid: 1, 2, 3",
    ]
    assert diagnostics(lines[:4]) == []
    assert diagnostics(lines[1:3]) == []


def test_without_a_section_the_error_lines_are_the_diagnostics() -> None:
    assert diagnostics(["x", "error: the stack is locked", "y"]) == ["error: the stack is locked"]
