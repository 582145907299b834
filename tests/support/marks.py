"""Marks of tests that need something of the system."""

from __future__ import annotations

import os

import pytest

unix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and devices of a Unix system")
