"""Tokenizers: the real one, a tiny one, and folders by the name of the vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.checkpoints import locate_minilm
from tests.support.text_data import data_path
from tests.support.tokenizer_files import SPECIALS, VOCABULARIES, WORDS, model_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a vocabulary's name to its folder."""
    top = tmp_path_factory.mktemp("vocabularies")

    def folder(name: str) -> Path:
        if name == "uncased tokenizer.json":
            return locate_minilm()
        if not (top / name).exists():
            source = locate_minilm() / "vocab.txt" if name == "uncased" else data_path(f"vocab/{name}.txt")
            model_folder(top / name, tokenizer_config=VOCABULARIES.get(name, {}) | {"model_max_length": 512})
            shutil.copyfile(source, top / name / "vocab.txt")
        return top / name

    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(model_folder(tmp_path / "tiny", vocab=SPECIALS + WORDS))
