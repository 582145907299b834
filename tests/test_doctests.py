"""The examples in the docstrings of all modules print the shown output."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from minibert import BertTokenizer
from minibert.checkpoint.files import DEFAULT_MODEL
from tests.support.head_models import make_model
from tests.support.multi_vectors import stanford
from tests.support.sentence_heads import MASKED, SEQUENCE

_PACKAGE = Path(__file__).parent.parent / "minibert"
_WITH_EXAMPLES = [
    ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(_PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def _small_models(home: Path) -> None:
    """Make small folders with the names of models that are not on this machine; the vocabulary is theirs."""
    vocabulary = sorted(words := BertTokenizer.from_pretrained(DEFAULT_MODEL).vocab, key=words.__getitem__)
    sizes = {"vocabulary": vocabulary, "type_vocab_size": 2, "max_position_embeddings": 256}
    make_model(home / "cross-encoder/ms-marco-MiniLM-L6-v2", SEQUENCE, num_labels=1, **sizes)
    make_model(home / "naver/splade-v3", MASKED, **sizes)
    bert, settings = make_model(home / "bert", "BertModel", **sizes), {"query_maxlen": 32, "doc_maxlen": 180}
    stanford(bert, home / "colbert-ir/colbertv2.0", settings, width=128)


@pytest.mark.parametrize("name", _WITH_EXAMPLES)
def test_the_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("minibert.sentence.") and "encoder" in name:
        _small_models(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


def test_no_example_is_skipped() -> None:
    assert len(_WITH_EXAMPLES) >= 6
    assert not [path for path in _PACKAGE.rglob("*.py") if "doctest: +SKIP" in path.read_text(encoding="utf-8")]
