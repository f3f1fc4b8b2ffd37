"""A configuration file in a ConfigMap whose name is its content."""

import hashlib
from dataclasses import dataclass

HASH_LENGTH = 12


@dataclass(frozen=True)
class ConfigFile:
    """One file of an immutable ConfigMap.

    ``object_name`` holds the hash of the content: a change is another object, a pod keeps what it
    was started with, and the pod template that names it changes, so that the pods roll.
    """

    name: str
    key: str
    content: str

    @property
    def object_name(self) -> str:
        """Name of the ConfigMap."""
        digest = hashlib.sha256(self.content.encode()).hexdigest()
        return f"{self.name}-{digest[:HASH_LENGTH]}"
