"""Find out why a port is wrong: `diagnose` names the known mistakes that explain a dump; `simulate` makes mistakes."""

from minibert.parity.diagnosis.catalogue import MISTAKES, find_mistakes
from minibert.parity.diagnosis.findings import Finding
from minibert.parity.diagnosis.search import diagnose
from minibert.parity.diagnosis.simulation import simulate

__all__ = ["MISTAKES", "Finding", "diagnose", "find_mistakes", "simulate"]
