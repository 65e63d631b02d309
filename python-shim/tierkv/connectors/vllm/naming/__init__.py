"""The identity of what an engine computes: namespace, weights, generations."""
