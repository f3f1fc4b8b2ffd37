"""Run a command so that it, and all that it starts, dies with whoever asked for it.

    python supervise.py FD COMMAND...

FD is the read end of a pipe that the asker holds open. The end of the file means that the asker is
gone (also by kill -9, after which nothing else could tell), and then the whole process group goes.
It is a program of its own because work between fork and exec is not safe in a threaded process.
"""

import os
import select
import signal
import subprocess
import sys
import threading


def main() -> int:
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    command = subprocess.Popen(sys.argv[2:])
    ended = threading.Event()

    def end_with_the_asker() -> None:
        select.select([pipe], [], [])
        if not ended.is_set():
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_the_asker, daemon=True).start()
    code = command.wait()
    ended.set()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
