"""Find out why a port is wrong: known mistakes (catalogue.py), what they compute, and which of them explain a dump.

`diagnose` names the mistakes that explain a dump, `explain` those that make one wrong value of one formula, `simulate`
makes the dump of a port with mistakes, and `find_mistakes` gives the `MISTAKES` of an id.
"""

from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.causes import diagnose, explain
from minibert.parity.diagnosis.simulation import find_mistakes, simulate
from minibert.parity.finding import Finding

__all__ = ["MISTAKES", "Finding", "diagnose", "explain", "find_mistakes", "simulate"]
