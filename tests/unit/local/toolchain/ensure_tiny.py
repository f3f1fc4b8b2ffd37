"""A process that calls `ensure` for the tiny module: `ensure_tiny.py MODULES_ROOT`."""

import sys
from pathlib import Path

from terrace_local.toolchain import ConsoleProgress, ensure
from terrace_local.toolchain.manifest import Manifest

MANIFEST = Manifest.model_validate(
    {
        "version": 1,
        "modules": {"tiny": {}},
        "tools": [
            {
                "name": name,
                "version": "1.2.3",
                "since_stage": 1,
                "binaries": [name],
                "build": {"module": "tiny", "packages": {name: package}},
            }
            for name, package in (("hello", "./hello"), ("major", "./major/v2"))
        ],
    }
)

if __name__ == "__main__":
    with ConsoleProgress() as progress:
        done = ensure(1, progress=progress, manifest=MANIFEST, modules_root=Path(sys.argv[1]))
    print(done.bin_dir)
