"""The service: an engine that computes for many clients at once, and the HTTP protocols that call it."""
