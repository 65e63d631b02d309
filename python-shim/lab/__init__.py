"""Owns what proves tierKV on a real engine: seeded models for the demo and the tests."""
