"""Stand-ins for other libraries, each behind an explicit import: see README.md."""
