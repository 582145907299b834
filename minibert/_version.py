"""The version of minibert; any module may import it."""

__version__ = "0.3.0"
