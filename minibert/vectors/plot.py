"""Plots of hidden states, words and sentences. Only this module imports matplotlib.

Every plot function returns a matplotlib Figure. A notebook shows it, and ``figure.savefig(path)`` saves it. pyplot is
not used, because it has a global state and opens windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert._utils.system import needs
from minibert._utils.validation import FloatArray, check_int, is_masked
from minibert.vectors.occurrences import WordOccurrences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_hidden_values", "plot_layers_pca", "plot_word_similarities", "principal_components"]
__all__ += ["require_matplotlib"]

# More labels, and longer ones, do not fit into a picture.
_MAX_LABELS = 12
_LABEL_LENGTH = 28
# More rows of a matrix are finer than its pixels.
_MAX_OCCURRENCES = 500
# This is more bars than the width of a picture has pixels.
_MAX_BINS = 10_000
# The difference of two larger values may be too large for float32.
_LARGEST = 1e38
_MARKERS = "osD^v"


def require_matplotlib() -> type[Figure]:
    """Return matplotlib's Figure; ImportError if matplotlib is not installed."""
    with needs("a picture", "matplotlib"):
        from matplotlib.figure import Figure
    return Figure


def plot_hidden_values(vectors: FloatArray, layers: Sequence[int] | None = None, *, bins: int = 100) -> Figure:
    """Draw the histogram of the values of a hidden vector, or of each of several hidden states, side by side.

    Parameters
    ----------
    vectors : ndarray of shape (H,) or (T, H), or (T, k, H) for k layers
        (T, k, H) is what ``embed_tokens(..., layer_pooling="tokens_first")`` gives.
    layers : k indices of hidden states, optional
        For the titles.
    bins : int
        Bars of each histogram, 1 to 10,000.
    """
    values = _checked("vectors", vectors, (1, 2, 3))
    bins = check_int("bins", bins, 1, _MAX_BINS)
    panels = [values] if values.ndim < 3 else list(np.moveaxis(values, 1, 0))
    edges = np.histogram_bin_edges(values, bins).tolist()  # the same in each panel, so that heights compare
    figure, axes = _grid(len(panels), 3.2, 2.4, share=True)
    for axis, panel, title in zip(axes, panels, _titles(layers, len(panels)), strict=True):
        axis.hist(panel.ravel(), bins=edges, color="tab:blue")
        axis.set_title(title)
        axis.set_axisbelow(True)
        axis.grid(axis="y", alpha=0.3)
        axis.tick_params(labelbottom=True)  # there may be no panel below that has the labels
    figure.supxlabel("value")
    figure.supylabel("features" if values.ndim == 1 else "features of all tokens")
    return figure


def plot_word_similarities(occurrences: WordOccurrences) -> Figure:
    """Draw the cosines between all occurrences of a word: one matrix for each layer that was kept apart.

    More than 12 occurrences have no names, and are in the order of their clusters, the same one in all matrices.

    Parameters
    ----------
    occurrences : WordOccurrences
        At least two; of more than 500 the first 500 are drawn. All matrices share one scale of colours.

    Notes
    -----
    Bezdek and Hathaway 2002, "VAT: a tool for visual assessment of (cluster) tendency": each row is the most similar
    one to any row before it, so a cluster is a bright square on the diagonal.
    """
    if not isinstance(occurrences, WordOccurrences):
        raise TypeError(f"occurrences is a {type(occurrences).__name__}; expected WordOccurrences.")
    if len(occurrences) < 2:
        raise ValueError(f"{occurrences.word!r} occurs once; comparing takes at least two occurrences.")
    count, occurrences = len(occurrences), occurrences.first(_MAX_OCCURRENCES)
    matrices = occurrences.similarities().reshape(-1, len(occurrences), len(occurrences))
    if len(occurrences) > _MAX_LABELS:
        order = _cluster_order(matrices.mean(axis=0))
        matrices = matrices[:, order][:, :, order]
    layers = occurrences.layers if occurrences.vectors.ndim == 3 else None
    side = min(3.2, max(2.4, 0.5 * len(occurrences)))
    names = [f"{number}: {_printable(place.in_context(10))}" for number, place in enumerate(occurrences.places)]
    figure, axes = _grid(len(matrices), side, side, margin=0.08 * max(map(len, names)))
    lowest = min(float(matrices.min()), 1 - 1e-6)
    numbers = np.arange(len(occurrences))
    image: Any = None
    for number, (axis, matrix, title) in enumerate(zip(axes, matrices, _titles(layers, len(matrices)), strict=True)):
        image = axis.imshow(matrix, vmin=lowest, vmax=1.0, cmap="viridis")
        axis.set_title(title)
        named = number % _columns(len(matrices)) == 0 and len(names) <= _MAX_LABELS
        axis.set_xticks(numbers if len(names) <= _MAX_LABELS else [])
        axis.set_yticks(numbers if len(names) <= _MAX_LABELS else [])
        if named:
            axis.set_yticklabels(names, parse_math=False)
        if len(names) <= 6:
            for i, j in np.ndindex(matrix.shape):
                dark = matrix[i, j] < (lowest + 1) / 2
                text = f"{matrix[i, j]:.2f}"
                axis.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
    first = f"the first {len(occurrences)} of " if count > len(occurrences) else ""
    figure.suptitle(f"{occurrences.word!r}, {first}{count} occurrences", parse_math=False)
    return figure


def _cluster_order(similarities: FloatArray) -> list[int]:
    """Return the rows, each the most similar one to any before it; the first one is among the least similar two."""
    order = [int(similarities.min(axis=1).argmin())]
    best = similarities[order[0]].copy()
    while len(order) < len(similarities):
        best[order] = -np.inf
        order.append(int(best.argmax()))
        best = np.maximum(best, similarities[order[-1]])
    return order


def plot_layers_pca(
    vectors: FloatArray, layers: Sequence[int] | None = None, *, labels: Sequence[str] | None = None
) -> Figure:
    """Draw sentences, a word's occurrences or other vectors on the first two principal components of each layer.

    Parameters
    ----------
    vectors : ndarray of shape (n, k, H)
        Of n sentences or words in k layers, n at least 2. The principal components of each layer are computed alone.
    layers : k indices of hidden states, optional
        For the titles.
    labels : n str, optional
        Points with the same label, such as a sense, have the same colour.

    Notes
    -----
    The README of bert-as-service compares the layers with this picture.
    """
    values = _checked("vectors", vectors, (3,))
    if len(values) < 2:
        raise ValueError(f"vectors has shape {values.shape}; principal components take at least 2 vectors.")
    if labels is not None and len(labels) != len(values):
        raise ValueError(f"{len(labels)} labels for {len(values)} vectors; expected one for each.")
    groups: dict[str, list[int]] = {}  # in the order in which the labels first appear
    for index in range(len(values)):
        groups.setdefault("" if labels is None else str(labels[index]), []).append(index)
    figure, axes = _grid(values.shape[1], 2.8, 2.6)
    for axis, panel, title in zip(axes, np.moveaxis(values, 1, 0), _titles(layers, values.shape[1]), strict=True):
        points = principal_components(panel, 2)
        for number, members in enumerate(groups.values()):
            marker, color = _MARKERS[number // 10 % len(_MARKERS)], f"C{number % 10}"
            axis.scatter(points[members, 0], points[members, 1], s=22, color=color, marker=marker)
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.margins(0.12)
    figure.supxlabel("first principal component")
    figure.supylabel("second principal component")
    if labels is not None and len(groups) <= _MAX_LABELS:
        legend = figure.legend(axes[0].collections, ["-"] * len(groups), loc="outside right upper", frameon=False)
        for text, label in zip(legend.get_texts(), groups, strict=True):
            # The text is set here, because a matplotlib legend leaves out labels that begin with "_".
            text.set(text=_short(label), parse_math=False)
    return figure


def principal_components(x: FloatArray, n_components: int = 2) -> FloatArray:
    """Return the coordinates of the rows of `x` on its principal components: (n, H) -> (n, n_components), float64.

    The rows minus their mean are U diag(s) V^T. The coordinates are the first columns of U diag(s), each with the sign
    that makes its largest entry positive. If there are fewer components, the other columns are zeros.
    """
    values = _checked("x", x, (2,)).astype(np.float64)
    n_components = check_int("n_components", n_components, 1, _MAX_BINS)
    centred = values - values.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(centred), n_components))
    count = min(n_components, len(s))
    points[:, :count] = u[:, :count] * s[:count]
    largest = points[np.abs(points).argmax(axis=0), np.arange(n_components)]
    return points * np.where(largest < 0, -1.0, 1.0)


def _checked(name: str, vectors: object, ndims: tuple[int, ...]) -> FloatArray:
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind != "f" or is_masked(vectors):
        raise TypeError(f"{name} is a {type(vectors).__name__}; expected a float array.")
    if vectors.ndim not in ndims or not vectors.size:
        expected = " or ".join(map(str, ndims))
        raise ValueError(f"{name} has shape {vectors.shape}; expected {expected} dimensions, none of them empty.")
    if not (np.abs(vectors, dtype=np.result_type(vectors, np.float32)) <= _LARGEST).all():
        raise ValueError(f"{name} holds NaN or infinity, or a value beyond {_LARGEST:g}, which cannot be drawn.")
    return np.asarray(vectors)


def _titles(layers: Sequence[int] | None, count: int) -> list[str]:
    if layers is None:
        return [""] * count if count == 1 else [f"state {number}" for number in range(count)]
    if len(layers) != count:
        raise ValueError(f"{len(layers)} layers for {count} panels; expected one index for each.")
    return [f"state {check_int('an index of layers', index)}" for index in layers]


def _columns(count: int) -> int:
    return count if count <= 4 else -(-count // -(-count // 5))


def _grid(
    count: int, width: float, height: float, *, share: bool = False, margin: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels, of a size in inches; the other cells of the grid are empty."""
    columns = _columns(count)
    rows = -(-count // columns)
    figure = require_matplotlib()(figsize=(columns * width + margin + 0.8, rows * height + 0.8), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel())
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def _printable(text: str) -> str:
    """Replace characters that cannot be drawn; control characters are not allowed in an SVG."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _short(text: str) -> str:
    line = _printable(" ".join(text.split()))
    return line if len(line) <= _LABEL_LENGTH else f"{line[: _LABEL_LENGTH - 3]}..."
