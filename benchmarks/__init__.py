"""Measurements: each module prints what it measures and can write its table into benchmarks/README.md."""
