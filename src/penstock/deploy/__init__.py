"""Manifests that start a run in a cluster: Kubernetes objects as YAML, or a batch script of Slurm."""
