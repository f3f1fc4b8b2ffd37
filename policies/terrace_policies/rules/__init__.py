"""The rules, one module per subject; those on Kubernetes objects in kubernetes.yaml."""
