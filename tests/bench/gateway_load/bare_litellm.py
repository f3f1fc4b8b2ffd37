"""LiteLLM as it comes: its app and its own authentication, on the loop that its command takes.

``bare_litellm.py CONFIG SOCKET MASTER_KEY``, in the translator's environment. What LiteLLM reads
from the process's environment is as for the translator, so that neither fetches or logs more.
"""

import importlib
import sys

import uvicorn

from terrace_translator.environment import prepare_process

if __name__ == "__main__":
    config, socket, master_key = sys.argv[1:]
    prepare_process(config_file=config, master_key=master_key, keep={"BENCH_KEY"})
    app = importlib.import_module("litellm.proxy.proxy_server").app
    uvicorn.run(app, uds=socket, loop="uvloop", access_log=False, log_level="warning")
