"""Tests that run other libraries' own test suites and wrappers on minibert; marker `clients`."""
