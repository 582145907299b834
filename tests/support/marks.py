"""Marks of tests that only some systems can run."""

from __future__ import annotations

import os

import pytest

unix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and devices of a Unix system")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not have fork")
