"""The simulated outside world: a deterministic model behind the public OpenAI and Bedrock APIs.

It imports no billing or pricing code of the gateway, so that its bill is a second, independent
record of every call. See ``docs`` of the repository, "The simulator", for the contract.
"""
