"""What Jobs do inside the cluster. The simulation runs no code, so somebody has to say.

`SIMULATED_CLOUD_JOBS` names a Python file with a function

    def completed(job, cluster, put) -> str | None

called once for each Job whose pods could run. ``job`` is its manifest, ``cluster`` a
``clusters.Cluster``; ``put(manifest)`` makes or overwrites an object, as the Job would. It returns
why the Job fails, or None. Without the file every Job that can run succeeds and does nothing.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from ..inventory import Item
from .clusters import Cluster
from .objects import Key, Manifest
from .waiting import why_pods_wait

VARIABLE: Final = "SIMULATED_CLOUD_JOBS"
_DONE: Final = "simulated.cloud/completed"

Completed = Callable[[Manifest, Cluster, Callable[[Manifest], None]], str | None]


def why_job_waits(job: Item, cluster: Cluster) -> str | None:
    """Run a Job if it can run and has not yet. Why it is not complete, or None."""
    if job.outputs.get(_DONE):
        return None
    if reason := why_pods_wait(job.inputs, cluster):
        return reason
    completed = _completed(os.environ.get(VARIABLE, ""))
    if completed is not None and (
        reason := completed(job.inputs, cluster, lambda made: put(made, cluster))
    ):
        return f"BackoffLimitExceeded: {reason}"
    job.outputs[_DONE] = True
    cluster.inventory.put(job)
    return None


def run_jobs(cluster: Cluster) -> None:
    """Let every Job that can run now do so."""
    for item in cluster.items():
        if item.inputs.get("kind") == "Job":
            why_job_waits(item, cluster)


def put(manifest: Manifest, cluster: Cluster) -> None:
    """Make an object that no program of Pulumi's asked for, or overwrite it."""
    key = Key.of(manifest)
    api = str(manifest["apiVersion"])
    token = f"kubernetes:{api if '/' in api else f'core/{api}'}:{key.kind}"
    id = f"{key.namespace}/{key.name}" if key.namespace else key.name
    content: dict[str, Any] = dict(manifest)
    cluster.inventory.put(Item(token, cluster.space, id, "", content, content))


@cache
def _completed(path: str) -> Completed | None:
    if not path:
        return None
    spec = importlib.util.spec_from_file_location("simulated_cloud_jobs", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{VARIABLE}={path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Completed = module.completed
    return found
