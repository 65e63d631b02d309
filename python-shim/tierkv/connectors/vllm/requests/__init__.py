"""The state of a request, and the parts of it that saving and restoring read."""
