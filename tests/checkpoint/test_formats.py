"""The files that minibert writes have a format number; files without one are read, newer ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert._utils.files import check_format
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.extract import TokenFeatures, extract_corpus
from minibert.corpus.manifests import FORMAT
from minibert.corpus.sources import Source
from tests.support.corpus_runs import text_file

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return text_file(tmp_path / "texts.txt", [f"text {i}" for i in range(6)])


def test_every_file_has_its_number(
    short_folder: Path, short_model: SentenceTransformer, source: Source, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    embed_corpus(short_model, [source], tmp_path / "v.parquet")
    assert json.loads((tmp_path / "v.parquet.manifest.json").read_text())["format"] == FORMAT
    assert json.loads(parquet.read_schema(tmp_path / "v.parquet").metadata[b"minibert"])["format"] == 1
    assert main(["hidden", "-m", str(short_folder), "a text", "-o", str(tmp_path / "h.npz")]) == 0
    with np.load(tmp_path / "h.npz") as states:
        assert states["format"] == 1


def test_formats_of_finished_runs(short_model: SentenceTransformer, source: Source, tmp_path: Path) -> None:
    output, manifest = tmp_path / "v.npy", tmp_path / "v.npy.manifest.json"
    embed_corpus(short_model, [source], output)
    content = json.loads(manifest.read_text())
    for number in (0, 1):  # minibert 0.1 and 0.3.0, which also wrote a checksum
        manifest.write_text(json.dumps({**content, "format": number, "crc32": 1}))
        summary = embed_corpus(short_model, [source], output, resume=True)
        assert summary.n_resumed == summary.n_texts == 6
    manifest.write_text(json.dumps({**content, "format": FORMAT + 1}))
    with pytest.raises(ValueError, match=f"has the format {FORMAT + 1}, but this minibert reads up"):
        embed_corpus(short_model, [source], output, resume=True)


def test_formats_of_token_features(short_model: SentenceTransformer, source: Source, tmp_path: Path) -> None:
    extract_corpus(short_model.model, short_model.tokenizer, [source], tmp_path / "s.npy", layers=-1)
    index = tmp_path / "s.tokens.jsonl"
    first, rest = index.read_text().split("\n", 1)
    old = json.loads(first)
    assert old.pop("format") == 1
    index.write_text(json.dumps(old) + "\n" + rest)
    assert len(TokenFeatures(tmp_path / "s.npy")) == 6
    index.write_text(json.dumps({"format": 2, **old}) + "\n" + rest)
    with pytest.raises(ValueError, match=r"s\.tokens\.jsonl has the format 2, .* reads up to 1;"):
        TokenFeatures(tmp_path / "s.npy")


@pytest.mark.parametrize("number", ["1", 1.0, True, -1, None, [1]])
def test_a_value_that_is_not_a_format_number_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="has the format"):
        check_format({"format": number}, 3, "it")
