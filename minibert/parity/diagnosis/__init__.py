"""Why a port is wrong: `diagnose` names the known mistakes that explain a dump, `simulate` makes them."""

from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.findings import Finding
from minibert.parity.diagnosis.search import diagnose
from minibert.parity.diagnosis.simulation import find_mistakes, simulate

__all__ = ["MISTAKES", "Finding", "diagnose", "find_mistakes", "simulate"]
