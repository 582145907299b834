"""minibert extract: Google's JSON lines compared with transformers; the binary format is written and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import BertModel, BertTokenizer, embed_tokens
from minibert.cli import main
from minibert.corpus.extract import TokenFeatures, extract_corpus
from minibert.corpus.google_lines import google_layers
from minibert.corpus.sources import Source
from tests.support.checkpoints import random_checkpoint
from tests.support.report import REPORT

TEXTS = [
    "the cat sat on the mat",
    "  hello world \t",
    "",
    "the man ||| the river bank of the dog",
    "the long river with her cat ||| a fish",
    "a ||| b ||| c",
    "short|||no pair",
    "dog " * 60,
    "dog " * 60 + "||| " + "cat " * 60,
    "cat " * 4 + "||| " + "dog " * 60,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=4, max_position_embeddings=64)


def expected_lines(folder: Path, texts: list[str], layers: list[int], limit: int) -> list[dict[str, Any]]:
    """Make the lines that extract_features.py documents, with transformers' model and tokenizer."""
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    lines = []
    for number, text in enumerate(texts):
        match = re.match(r"^(.*) \|\|\| (.*)$", text.strip())
        first, second = (match.group(1), match.group(2)) if match else (text.strip(), None)
        tokens_a, tokens_b = tokenizer.tokenize(first), None if second is None else tokenizer.tokenize(second)
        if tokens_b is None:
            tokens_a = tokens_a[: limit - 2]
        else:
            while len(tokens_a) + len(tokens_b) > limit - 3:
                (tokens_a if len(tokens_a) > len(tokens_b) else tokens_b).pop()
        tokens = ["[CLS]", *tokens_a, "[SEP]"]
        types = [0] * len(tokens)
        if tokens_b is not None:
            tokens += [*tokens_b, "[SEP]"]
            types += [1] * (len(tokens_b) + 1)
        ids = torch.tensor([tokenizer.convert_tokens_to_ids(tokens)])
        with torch.inference_mode():
            states = model(ids, token_type_ids=torch.tensor([types]), output_hidden_states=True).hidden_states
        all_encoder_layers = [state[0].numpy() for state in states[1:]]
        features: list[dict[str, Any]] = []
        for place, token in enumerate(tokens):
            values = {i: [round(float(x), 6) for x in all_encoder_layers[i][place]] for i in layers}
            features.append({"token": token, "layers": [{"index": i, "values": values[i]} for i in layers]})
        lines.append({"linex_index": number, "features": features})
    return lines


@pytest.mark.parametrize(("layers", "limit"), [([-1, -2, -3, -4], 16), ([0, 3, -2], 31), ([1], 64)])
def test_googles_lines_field_by_field(folder: Path, tmp_path: Path, capsys: Any, layers: list[int], limit: int) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    options = [f"--layers={','.join(map(str, layers))}", f"--max_seq_length={limit}", "--batch_size=3"]
    options += [f"--input_file={tmp_path / 'in.txt'}", f"--output_file={tmp_path / 'out.jsonl'}", "--do_lower_case"]
    assert main(["extract", "-m", str(folder), "--format", "google", *options]) == 0
    assert re.search(r"10 texts, \d+ tokens, \d texts cut", capsys.readouterr().out)
    found_lines = (tmp_path / "out.jsonl").read_text().splitlines()
    worst, n_values = 0.0, 0
    for line, expected in zip(found_lines, expected_lines(folder, TEXTS, layers, limit), strict=True):
        found = json.loads(line)
        assert list(found) == ["linex_index", "features"]
        assert found["linex_index"] == expected["linex_index"]
        for ours, theirs in zip(found["features"], expected["features"], strict=True):
            assert list(ours) == ["token", "layers"]
            assert ours["token"] == theirs["token"]
            for own, other in zip(ours["layers"], theirs["layers"], strict=True):
                assert list(own) == ["index", "values"]
                assert own["index"] == other["index"]
                assert all(round(x, 6) == x for x in own["values"])
                np.testing.assert_allclose(own["values"], other["values"], atol=1.2e-5)
                worst = max(worst, float(np.abs(np.subtract(own["values"], other["values"])).max()))
                n_values += len(own["values"])
        assert line == json.dumps(found)  # the separators are those of json.dumps too
    REPORT.append(
        f"extract --format google: {n_values} values, at most {worst:.1e} from transformers, rounded to 6 places"
    )


def test_layers_in_googles_numbering() -> None:
    assert google_layers([0, 3, -1, -4], 4) == (1, 4, 4, 1)
    for layer in (4, -5):
        with pytest.raises(ValueError, match=f"layers={layer}; .*-4 to -1"):
            google_layers([layer], 4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_binary_format_is_read_back(folder: Path, tmp_path: Path, capsys: Any, dtype: str) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    output = tmp_path / "states.npy"
    options = [*f"--layers=-1,0 --dtype {dtype} --batch-size 3 -o".split(), str(output), "-i", str(tmp_path / "in.txt")]
    assert main(["extract", "-m", str(folder), *options]) == 0
    assert "10 texts, 256 tokens, 2 texts cut" in capsys.readouterr().out
    features = TokenFeatures(output)
    assert isinstance(features.vectors, np.memmap)
    assert (len(features), features.layers, features.ids) == (10, (4, 0), list(range(10)))
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    expected = embed_tokens(model, tokenizer, TEXTS, layers=[-1, 0], layer_pooling="tokens_first", truncation="silent")
    for found, one in zip(features, expected, strict=True):
        assert found is not None
        np.testing.assert_array_equal(found.vectors, one.vectors.astype(dtype))
        np.testing.assert_array_equal(found.offsets, one.offsets)
        for name in ("text", "tokens", "word_ids", "layers", "n_truncated", "cut_words"):
            assert getattr(found, name) == getattr(one, name), name
        assert found.words().words == one.words().words
    names = {"in.txt", "states.npy", "states.npy.manifest.json", "states.tokens.jsonl"}
    assert {entry.name for entry in tmp_path.iterdir()} == names
    np.save(output, np.zeros((3, 2, 24)))
    with pytest.raises(ValueError, match="do not belong together"):
        TokenFeatures(output)
    with pytest.raises(OSError, match=r"missing\.npy cannot be read"):
        TokenFeatures(tmp_path / "missing.npy")


def test_files_that_are_written_again_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    for texts in ("a b\nc d\n", "c d\na b\n"):
        (tmp_path / "in.txt").write_text(texts)
        extract_corpus(model, tokenizer, [Source(tmp_path / "in.txt", "text")], tmp_path / "o.npy", layers=[-1])
        if texts[0] == "a":
            features = TokenFeatures(tmp_path / "o.npy")
            assert features[1] is not None
    with pytest.raises(ValueError, match=r"tokens\.jsonl has changed"):
        features[0]


@pytest.mark.parametrize(("batch_size", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_a_batch_size_that_is_not_one(folder: Path, tmp_path: Path, batch_size: Any, error: type[Exception]) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    sources = [Source(str(tmp_path / "in.txt"), "text")]
    with pytest.raises(error, match="batch_size"):
        extract_corpus(model, tokenizer, sources, tmp_path / "o.npy", layers=[-1], batch_size=batch_size)
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.txt"]
    assert extract_corpus(model, tokenizer, sources, tmp_path / "o.npy", layers=[-1], batch_size=np.int64(2))


def test_a_length_without_room_for_the_special_tokens_of_a_pair(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BertTokenizer, "num_special_tokens_to_add", lambda self, pair: 2 + 2 * pair)  # as RoBERTa's
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    options: dict[str, Any] = {"format": "google", "layers": [-1], "max_length": 3}
    with pytest.raises(ValueError, match="max_length=3; expected 4 to 64"):
        extract_corpus(model, tokenizer, [Source("in.txt", "text")], tmp_path / "o.json", **options)


def test_bad_lines(folder: Path, tmp_path: Path, capsys: Any) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"a cat\n\xff\na dog\n")
    for kind, suffix in (("google", "jsonl"), ("binary", "npy")):
        for on_error, code in (("stop", 1), ("skip", 0), ("null", 0)):
            output = tmp_path / f"{on_error}.{suffix}"
            options = ["-i", str(bad), "-o", str(output), "--format", kind, "--on-error", on_error, "--layers=-1"]
            assert main(["extract", "-m", str(folder), *options]) == code
            assert f"{bad}, line 2: is not UTF-8: byte 0xff" in capsys.readouterr().err
            assert output.exists() == (code == 0)
    contents = [(tmp_path / f"{name}.jsonl").read_text() for name in ("skip", "null")]
    indices = [[json.loads(line) for line in content.splitlines()] for content in contents]
    assert [[line["linex_index"] for line in lines] for lines in indices] == [[0, 2], [0, 1, 2]]
    assert indices[1][1] == {"linex_index": 1, "features": None}
    assert TokenFeatures(tmp_path / "skip.npy").ids == [0, 2]
    null = TokenFeatures(tmp_path / "null.npy")
    assert null[1] is None
    assert null[2] is not None


def test_options_that_are_a_mistake(folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ("o.npy --do_lower_case=False", "leave it out"),
        ("o.npy --layers=9", "9"),
        ("o.npy --max-length 65", "--max-length 65"),
        ("o.json --format google --layers=4", "0 to 3, or -4 to -1"),
        ("o.json --format google --max_seq_length=2", "--max-length 2; expected 3 to 64"),
        ("o.json --format google --max_seq_length=65", "--max-length 65; expected 3 to"),
        ("- --format google", "- must end in .json"),
    ):
        assert main(["extract", "-m", str(folder), "-i", "in.txt", "-o", *options.split()]) == 1
        assert message in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.txt"]
