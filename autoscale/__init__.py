"""Scaling the replicas with load: signals, policies and a simulator. Knows nothing of `hosting` or `loaders`."""
