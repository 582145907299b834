"""Stand-ins for other libraries, each behind an explicit import: see README.md."""

__all__: list[str] = []
