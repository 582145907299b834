"""Modules that several test files use: checkpoints, servers, oracles, texts, programs that crash."""
