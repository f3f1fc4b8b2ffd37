"""``python -m terrace_translator.import_check``: LiteLLM's app imports. Run by the image's build.

The lock is put together by hand and the image is stripped: what is missing must fail the build.
"""

import importlib
import importlib.util
import sys

from terrace_translator.environment import prepare_process


def main() -> int:
    prepare_process(config_file="", master_key="sk-only-for-this-import")
    proxy = importlib.import_module("litellm.proxy.proxy_server")
    if importlib.util.find_spec("litellm_enterprise") is not None:
        sys.stderr.write("litellm-enterprise is installed: proprietary, it must not be\n")
        return 1
    return 0 if callable(proxy.app) else 1


if __name__ == "__main__":
    sys.exit(main())
