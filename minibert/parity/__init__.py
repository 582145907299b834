"""Checking other implementations of BERT: truth, verdict, mistakes, replay, diagnosis."""

__all__: list[str] = []
