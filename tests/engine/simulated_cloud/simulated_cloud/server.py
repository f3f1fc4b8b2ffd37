"""Serves a provider on a local port; the engine reads the port from the first line of stdout."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

_WORKERS = 32


def serve(provider: provider_pb2_grpc.ResourceProviderServicer) -> None:
    """Runs until the engine ends the process."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=_WORKERS),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    # The engine ends a plugin by SIGINT, and kills it five seconds later.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop(grace=None))
    server.wait_for_termination()
