"""The plots: their content and labels; pyplot is not used, and without matplotlib there is a clear error."""

from __future__ import annotations

import dataclasses
import io
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest
import sklearn.decomposition
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from minibert import BertModel, BertTokenizer, embed_tokens, word_occurrences
from minibert.vectors.plot import plot_hidden_values, plot_layers_pca, plot_word_similarities, principal_components
from tests.support.checkpoints import random_checkpoint
from tests.support.outcomes import python
from tests.support.refusals import Refused, check_refused

TEXTS = ["the cat sat on the mat", "the dog and the bank", "a man from the river"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=3)


@pytest.fixture(scope="module")
def model(folder: Path) -> BertModel:
    return BertModel.from_pretrained(folder, backend="numpy")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((20, 4, 16)).astype(np.float32)


def drawn(figure: Figure) -> None:
    """Write the figure as every kind of file; warnings are errors."""
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        file = io.BytesIO()
        figure.savefig(file, format=suffix)
        assert file.getvalue().startswith(start)
        if suffix == "svg":
            xml.dom.minidom.parseString(file.getvalue())


def titles(figure: Figure) -> list[str]:
    return [axis.get_title() for axis in figure.axes if axis.get_label() != "<colorbar>"]


# --- histogram --------------------------------------------------------------------------------------------------------


def test_histograms_by_layer_share_their_bins(points: np.ndarray) -> None:
    figure = plot_hidden_values(points, range(4), bins=7)
    assert titles(figure) == ["state 0", "state 1", "state 2", "state 3"]
    edges = np.histogram_bin_edges(points, bins=7)
    for layer, axis in enumerate(figure.axes):
        assert [p.get_height() for p in axis.patches] == np.histogram(points[:, layer], bins=edges)[0].tolist()
        np.testing.assert_allclose([patch.get_x() for patch in axis.patches], edges[:-1], rtol=1e-6)
    drawn(figure)
    (axis,) = plot_hidden_values(points[0, 0], bins=5).axes
    assert [patch.get_height() for patch in axis.patches] == np.histogram(points[0, 0], bins=5)[0].tolist()


# --- similarities of a word -------------------------------------------------------------------------------------------


def test_word_similarities_by_layer(model: BertModel, tokenizer: BertTokenizer) -> None:
    texts = embed_tokens(model, tokenizer, TEXTS, layers=[0, 2, 3], layer_pooling="tokens_first")
    found = word_occurrences("the", texts, tokenizer)
    figure = plot_word_similarities(found)
    assert titles(figure) == ["state 0", "state 2", "state 3"]
    matrices = found.similarities()
    panels = figure.axes[:3]
    for axis, matrix in zip(panels, matrices, strict=True):
        (image,) = axis.images
        np.testing.assert_array_equal(image.get_array(), matrix)
        assert image.get_clim() == (matrices.min(), 1.0), "all images must have one scale of colours"
        assert [text.get_text() for text in axis.texts] == [f"{cosine:.2f}" for cosine in matrix.ravel()]
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert (len(labels), labels[1]) == (5, "1: ...at sat on [the] mat")
    assert figure.axes[3].get_ylabel() == "cosine"
    drawn(figure)
    found = word_occurrences("the", embed_tokens(model, tokenizer, TEXTS), tokenizer)  # one layer
    figure = plot_word_similarities(found)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), found.similarities())
    assert len(figure.axes) == 2, "expected a matrix and its colour bar"


def test_many_occurrences_are_in_the_order_of_their_clusters(
    model: BertModel, tokenizer: BertTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = embed_tokens(model, tokenizer, TEXTS * 5, layers=[0, 3], layer_pooling="tokens_first")
    found = word_occurrences("the", texts, tokenizer)
    clusters = np.random.default_rng(0).permutation(np.arange(25) % 3)
    noise = np.random.default_rng(1).standard_normal((25, 2, 8)) / 9
    found = dataclasses.replace(found, vectors=(np.eye(8)[clusters][:, None] + noise).astype(np.float32))
    figure = plot_word_similarities(found)
    for axis in figure.axes[:2]:
        near = np.asarray(axis.images[0].get_array()) > 0.5
        assert np.abs(np.diff(near.astype(int), axis=1)).sum(axis=1).max() <= 2, "a cluster is one square"
        assert near.any(axis=0).all()
        assert near.sum() == np.square(np.bincount(clusters)).sum()
    assert "'the', 25 occurrences" in figure.get_suptitle()
    monkeypatch.setattr("minibert.vectors.plot._MAX_OCCURRENCES", 20)
    figure = plot_word_similarities(found)
    assert figure.axes[0].images[0].get_array().shape == (20, 20)
    assert "'the', the first 20 of 25 occurrences" in figure.get_suptitle()


def test_labels_are_drawn_literally(model: BertModel, tokenizer: BertTokenizer) -> None:
    """Dollars do not start a formula, and labels with an underscore are not dropped."""
    texts = embed_tokens(model, tokenizer, [r"_a $5 \frac the $x", r"the $\nonsense$"])
    drawn(plot_word_similarities(word_occurrences("the", texts, tokenizer)))
    labels = ["_a $5 and $", r"$\nonsense{$", "bell \ufffd"]
    figure = plot_layers_pca(np.random.default_rng(0).standard_normal((3, 2, 4)), labels=[*labels[:2], "bell\n\x07"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels
    drawn(figure)


# --- principal components ---------------------------------------------------------------------------------------------


def test_principal_components_are_those_of_scikit_learn(points: np.ndarray) -> None:
    x = points[:, 1]
    ours = principal_components(x, 3)
    theirs = sklearn.decomposition.PCA(3, svd_solver="full").fit_transform(x.astype(np.float64))
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.T @ ours, np.diag(np.diag(ours.T @ ours)), rtol=0, atol=1e-12)
    largest = np.abs(ours).argmax(axis=0)
    assert (ours[largest, range(3)] > 0).all()
    np.testing.assert_array_equal(principal_components(np.ones((3, 4))), np.zeros((3, 2)))
    assert principal_components(points[:2, 0], 5).shape == (2, 5)


def test_sentences_by_layer(points: np.ndarray) -> None:
    labels = ["red", "blue", "red", "green"] * 5
    figure = plot_layers_pca(points, [0, 1, 2, 5], labels=labels)
    assert titles(figure) == ["state 0", "state 1", "state 2", "state 5"]
    for layer, axis in enumerate(figure.axes):
        expected = principal_components(points[:, layer])
        for number, label in enumerate(("red", "blue", "green")):
            collection = axis.collections[number]
            own = [i for i, other in enumerate(labels) if other == label]
            np.testing.assert_allclose(collection.get_offsets(), expected[own])
            assert tuple(collection.get_facecolor()[0]) == to_rgba(f"C{number}")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["red", "blue", "green"]
    drawn(figure)
    assert not plot_layers_pca(points).legends
    assert not plot_layers_pca(points, labels=[str(i) for i in range(20)]).legends, "more labels than fit"


# --- refused inputs ---------------------------------------------------------------------------------------------------


def test_bad_input(points: np.ndarray) -> None:
    values: Refused = {
        ("vectors", TypeError): (points.tolist(), points.astype(int)),
        ("vectors", ValueError): (points[None], points[:0], points * np.nan),
        ("layers", ValueError): ([1, 2],),
    }
    check_refused(plot_hidden_values, {"vectors": points}, values)
    more: Refused = {("vectors", ValueError): (points[0], points[:1]), ("labels", ValueError): (["a"],)}
    check_refused(plot_layers_pca, {"vectors": points}, more)
    check_refused(plot_word_similarities, {}, {("occurrences", TypeError): (points,)})


def test_without_matplotlib(folder: Path, tmp_path: Path) -> None:
    """The error is raised before anything is computed or written, and says what to install."""
    hide = "import sys; sys.modules['matplotlib'] = None; from minibert.cli import main; "
    for verb in (["words", "the", "the cat the"], ["hidden", "a", "-o", str(tmp_path / "states.npz")]):
        arguments = [*verb, "-m", str(folder), "--backend", "numpy", "--plot", str(tmp_path / "p.png")]
        done = python("-c", f"{hide}sys.exit(main({arguments!r}))")
        assert (done.returncode, done.stdout) == (1, "")
        assert "pip install matplotlib" in done.stderr
        assert not list(tmp_path.iterdir())
