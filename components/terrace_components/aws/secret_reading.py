"""The right to read named secrets of AWS Secrets Manager, as a policy for ``AwsPodIdentity``."""

from collections.abc import Sequence
from typing import Any

import pulumi

from terrace_components.aws.arns import policy_document


def secret_reading_policy(
    secret_arns: Sequence[pulumi.Input[str]], key_arns: Sequence[pulumi.Input[str]] = ()
) -> pulumi.Output[str]:
    """JSON text of a policy that allows to read exactly these secrets, and to decrypt with these
    keys for that purpose only. A secret under AWS's own key needs no key here."""
    statements: list[dict[str, Any]] = [
        {
            "Sid": "ReadSecrets",
            "Action": ["secretsmanager:GetSecretValue"],
            "Resource": [*secret_arns],
        }
    ]
    if key_arns:
        statements.append(
            {
                "Sid": "DecryptSecrets",
                "Action": ["kms:Decrypt"],
                "Resource": [*key_arns],
                # The context is set by Secrets Manager, so the key opens nothing else for the pod.
                "Condition": {"StringEquals": {"kms:EncryptionContext:SecretARN": [*secret_arns]}},
            }
        )
    return policy_document(*statements)
