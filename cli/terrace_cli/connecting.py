"""Connecting to what runs in a cluster: a refused connection is tried again.

A cluster's packet filter is written anew with every change of a pod, and refuses new connections
for some hundredths of a second meanwhile (kube-router does, on this machine). What was refused was
never sent, so trying again repeats no call.
"""

import httpx

TRIES_AGAIN = 3  # at once, after 0.5 s and after 1 s


def patient_transport() -> httpx.HTTPTransport:
    """For an ``httpx.Client``. It knows no proxy of the environment."""
    return httpx.HTTPTransport(retries=TRIES_AGAIN)
