"""Stand-ins for the engine and the sidecar."""
