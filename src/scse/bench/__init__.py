"""Benchmarks: every number is a ratio to a reference measured in the same process."""
