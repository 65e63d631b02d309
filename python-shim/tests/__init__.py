"""Unit tests of the shim: everything that can be shown without an engine."""
