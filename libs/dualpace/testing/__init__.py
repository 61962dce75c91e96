"""Doubles and harnesses for tests and benchmarks. Nothing that serves imports this."""
