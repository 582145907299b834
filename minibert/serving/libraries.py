"""The libraries of the web side, which `import minibert` never imports."""

from __future__ import annotations

__all__ = ["missing"]

_PACKAGES = {"prometheus_client": "prometheus-client"}


def missing(error: ImportError) -> ImportError:
    """Return the error of a module whose library is not installed; `error` itself if it names a module of minibert."""
    library = (error.name or "").partition(".")[0]
    if library in ("", "minibert"):
        return error
    package = _PACKAGES.get(library, library)
    return ImportError(
        f"the service needs {library}, which is not installed: pip install {package} (or, from a clone of minibert, "
        "all of them: pip install '.[serve]')",
        name=library,
    )
