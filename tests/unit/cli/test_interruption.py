"""Ctrl-C ends the children of this command and spares those that left its session."""

import subprocess
import sys

SCRIPT = """
import subprocess, sys, time
from terrace_cli.interruption import stop_children
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN)"
stubborn += "; print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
grandchild = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
pid = int(grandchild.stdout.readline())
daemon = subprocess.Popen(["sleep", "60"], start_new_session=True)
stop_children(grace_seconds=0.5)
print(child.wait(5), grandchild.wait(5), daemon.poll())
daemon.kill()
daemon.wait()
"""


def test_children_end_and_daemons_stay() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.stdout.split() == ["-9", "-15", "None"]
