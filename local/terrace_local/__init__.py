"""What a machine needs to be a one-node Kubernetes: binaries, cluster, images."""
