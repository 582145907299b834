"""Stand-ins for other libraries; each one needs an explicit import. See README.md."""
