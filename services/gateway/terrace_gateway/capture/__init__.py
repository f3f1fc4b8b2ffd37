"""Prompts and answers, kept where a policy asks for it: redacted, encrypted, apart."""
