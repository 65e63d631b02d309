"""The connection to the sidecar: frames, the socket, helper threads, and guards around them."""
