"""`terrace up`: from a bare machine to a gateway that answers."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from terrace_cli.endpoints import Endpoints, write_endpoints
from terrace_cli.errors import (
    CliError,
    HeldByAnotherError,
    NotRunningError,
    NotUpInTimeError,
    UsageError,
)
from terrace_cli.kubernetes_api import KubernetesApi
from terrace_cli.output import Progress, TaskLines
from terrace_cli.places import STACK, exclusive_use, repository, state_directory
from terrace_cli.pulumi_stack import PulumiStack
from terrace_cli.stack_settings import checked_stage, configuration, settings_file
from terrace_cli.stages import check_stage
from terrace_common.names import (
    IMAGES,
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    NAMESPACE_OBSERVABILITY,
    NAMESPACE_PROVIDERS,
)
from terrace_local import cluster, images, toolchain

NAMESPACES = (
    "kube-system",
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    NAMESPACE_PROVIDERS,
    NAMESPACE_OBSERVABILITY,
)
_READY_SECONDS = 180
# Replicas go one after the other, and each may wait for its longest stream.
_ROLL_SECONDS = 1800
_SILENCE_SECONDS = 90
"""How long the API server may go without answering while replicas roll."""
_PAUSE_SECONDS = 1.0
_NO_TOOLCHAIN_YET = Path("/nonexistent")
_BROUGHT_BY_UP = ("program", "toolchain")


def bring_up(asked_stage: int | None, progress: Progress) -> tuple[int, Endpoints]:
    """Make it so that the platform stands; a second call changes nothing. Returns its stage.

    The stage is the one asked for, else that of the settings file, which is written only when
    another one is asked for. Nothing is changed before settings and machine have been checked. Each
    part can be repeated after it was interrupted or killed.
    """
    if asked_stage is not None:
        check_stage(asked_stage)
    clone = repository()
    with exclusive_use(
        clone,
        on_wait=lambda: progress.say("up", "another terrace works in this clone; waiting for it"),
    ):
        with progress.part("checks"):
            check_machine(clone)
            _check_substrate(clone)
            stage = checked_stage(clone, asked_stage)
        with toolchain.ConsoleProgress() as console:
            with progress.part("debian packages"):
                toolchain.ensure_debian_packages(progress=console)
            with progress.part("toolchain"):
                tools = toolchain.ensure(stage, progress=console)
        try:
            _start_cluster_and_images(clone, tools, progress)
        except cluster.NotRunning as error:
            raise _stopped_meanwhile(error) from error
        endpoints = _run_program(clone, asked_stage, tools, progress)
        with progress.part("gateway ready"):
            wait_until_ready(endpoints.gateway, progress)
            wait_until_rolled(progress)
        write_endpoints(endpoints)
    return stage, endpoints


def check_machine(clone: Path) -> None:
    """Look at the machine, changing nothing, before half an hour is spent on building for it.

    Raises PreflightFailed, or HeldByAnotherError when another clone's cluster runs. Missing
    programs are no reason to refuse: the next two parts bring them, and the cluster looks again.
    """
    problems = [
        problem
        for problem in cluster.preflight(_NO_TOOLCHAIN_YET)
        if problem.subject not in _BROUGHT_BY_UP
    ]
    if problems:
        raise cluster.PreflightFailed(problems)
    found = cluster.status()
    if found.state in ("running", "degraded") and found.holder_clone != clone:
        raise HeldByAnotherError(
            f"The cluster on this machine belongs to {found.holder}. Use that clone, or run "
            "`terrace down` there first."
        )


def _check_substrate(clone: Path) -> None:
    """The stack `local` is this machine's cluster, whatever it is that its file says."""
    substrate = configuration(clone).get("terrace:substrate", "local")
    if substrate in ("aws", "existing"):
        raise UsageError(
            f"{settings_file(clone).name}: terrace:substrate is {substrate}, and the stack "
            f"`{STACK}` is this machine's cluster. Keep those settings in a file of another name, "
            "and use `terrace up --stack NAME`."
        )


def wait_until_ready(gateway: str, progress: Progress, *, seconds: float = _READY_SECONDS) -> None:
    """Return when `/readyz` answers 200. Raises NotUpInTimeError saying what is wrong."""
    deadline = time.monotonic() + seconds
    last = "no answer"
    with httpx.Client(timeout=5, trust_env=False) as client:
        while True:
            try:
                answer = client.get(f"{gateway}/readyz")
                if answer.is_success:
                    return
                last = f"status {answer.status_code}: {answer.text[:200]}"
            except httpx.TransportError as error:
                last = f"no answer ({type(error).__name__})"
            if time.monotonic() > deadline:
                break
            progress.say("gateway", f"not ready yet, {last}")
            time.sleep(0.5)
    raise NotUpInTimeError(
        "\n".join(
            [f"The gateway at {gateway} is not ready after {seconds:.0f} s: {last}", *troubles()]
        )
    )


def wait_until_rolled(
    progress: Progress, *, seconds: float = _ROLL_SECONDS, silence: float = _SILENCE_SECONDS
) -> None:
    """Return when every workload runs what the program asks for.

    Raises NotUpInTimeError, or NotRunningError when nothing was heard of the API server for so many
    seconds of silence.

    Pulumi's provider takes a StatefulSet that was changed for ready when the controller has not
    looked at the change yet.
    """
    before = ""
    deadline, heard = time.monotonic() + seconds, time.monotonic()
    with KubernetesApi() as kubernetes:
        while True:
            try:
                loads = kubernetes.workloads(NAMESPACES)
                heard = time.monotonic()
            except NotRunningError as error:
                # Its connections to its store come back one after the other.
                if time.monotonic() > min(deadline, heard + silence):
                    raise
                said = str(error)
            else:
                waiting = [load for load in loads if not load.is_ready]
                if not waiting:
                    return
                said = ", ".join(f"{load.namespace}/{load.name} {load.words()}" for load in waiting)
            if time.monotonic() > deadline:
                raise NotUpInTimeError(
                    "\n".join([f"Not up after {seconds:.0f} s: {said}", *troubles()])
                )
            if said != before:
                progress.say("workloads", said)
            before = said
            time.sleep(_PAUSE_SECONDS)


def troubles() -> list[str]:
    """What Kubernetes says is wrong with the pods, a line each; empty if it cannot be asked."""
    try:
        with KubernetesApi() as kubernetes:
            return kubernetes.pod_troubles(NAMESPACES)
    except CliError:
        return []


def _stopped_meanwhile(error: cluster.NotRunning) -> NotRunningError:
    """It ran a moment ago, so "run `terrace up` first" would be no help to who just did."""
    what = "containerd" if "containerd" in str(error) else "the cluster"
    log = state_directory() / "log" / ("containerd.log" if what == "containerd" else "")
    return NotRunningError(
        f"{what} stopped during `up` (stopped by another process?); see {log}; "
        "run `terrace up` again"
    )


def _start_cluster_and_images(clone: Path, tools: toolchain.Toolchain, progress: Progress) -> None:
    """The two longest parts side by side: one mostly waits, the other mostly packs."""
    stop = Event()
    told = TaskLines(progress, "images")

    def start() -> None:
        with progress.part("cluster"):
            cluster.up(tools.bin_dir, clone=clone, progress=_teller(progress, "cluster"))

    def build() -> dict[str, images.BuiltImage]:
        with progress.part("images"):
            return images.ensure_images(IMAGES, progress=told, stop=stop)

    pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="up")
    try:
        starting, building = pool.submit(start), pool.submit(build)
        both: list[Future[Any]] = [starting, building]
        wait(both, return_when=FIRST_EXCEPTION)
        for done in both:
            if done.done():
                done.result()
        starting.result()
        built = building.result()
    finally:
        # After a failure of one the other is told to end, not waited for.
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    with progress.part("images into the node"):
        images.load_images(
            built, loader=cluster.load_image, has_image=cluster.has_image, progress=told
        )
    cluster.write_substrate({name: image.ref for name, image in built.items()})


def _run_program(
    clone: Path, asked_stage: int | None, tools: toolchain.Toolchain, progress: Progress
) -> Endpoints:
    stack = PulumiStack(clone, tools.bin_dir, _teller(progress, "pulumi"))
    with progress.part("pulumi up"):
        stack.ensure_selected()
        if asked_stage is not None:
            stack.ensure_stage(asked_stage)
        progress.say("pulumi", "pulumi up")
        try:
            stack.up()
        except NotUpInTimeError as error:
            raise NotUpInTimeError("\n".join([str(error), *troubles()])) from error
        outputs = stack.outputs()
    try:
        return Endpoints(
            gateway=outputs["gateway_url"],
            admin=outputs["admin_url"],
            prometheus=outputs["prometheus_url"],
            simulator=outputs["simulator_url"],
        )
    except KeyError as error:
        raise CliError(
            f"The stack has no output {error}; it has {', '.join(outputs) or 'none'}."
        ) from None


def _teller(progress: Progress, part: str) -> Callable[[str], None]:
    return lambda text: progress.say(part, text)
