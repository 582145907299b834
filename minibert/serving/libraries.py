"""The libraries of the web side, which `import minibert` never imports."""

from __future__ import annotations

from minibert._utils.system import missing_library


def missing(error: ImportError) -> ImportError:
    """Return the error of a module whose library is not installed; it names all libraries of the service."""
    return missing_library(
        "the service", error, "uvicorn", "httptools", "starlette", "msgspec", "orjson", "prometheus-client"
    )
