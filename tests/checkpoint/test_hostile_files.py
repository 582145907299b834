"""Damaged files of models and unusual corpora: a right answer, or one of the errors that minibert promises.

An answer must be finite, and the same alone and in a batch. A crash, another exception, a wrong number and a changed
input are faults. The default run has a sample of each list; `slow` has 20 times as many cases.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from minibert import BertModel, ModelFormatError, SentenceTransformer
from minibert.cli import main
from tests.support.damage import both, chances, damaged_json, sampled, values
from tests.support.random_checkpoints import VOCABULARY, random_model, save_vocabulary
from tests.support.report import REPORT

ALLOWED = (TypeError, ValueError, MemoryError, OSError, ModelFormatError)
TEXTS = ("the cat sat", "a", "", "héllo wörld, the 2nd man by the river bank", "[MASK] ## ＡＢ 😀", "cat " * 40)
SETTINGS = ("config.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence model of two layers with 64 positions."""
    plain = random_model(tmp_path_factory.mktemp("plain") / "model", (24, 2, 3, 40, "gelu"), len(VOCABULARY), 64)
    save_vocabulary(plain, len(VOCABULARY), 64)
    folder = tmp_path_factory.mktemp("intact") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SentenceTransformer(plain).save_pretrained(str(folder))
    return folder


def outcome(folder: Path) -> str:
    """Load a folder and encode: "refused", or "answered" with finite vectors that do not depend on the batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = SentenceTransformer(str(folder), backend="numpy", local_files_only=True)
            together = model.encode(TEXTS, truncation="silent")
            alone = np.stack([model.encode(text, truncation="silent") for text in TEXTS])
        except ALLOWED:
            return "refused"
    assert np.isfinite(together).all()
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(alone).max()))
    return "answered"


def report(name: str, counts: Counter[str]) -> None:
    REPORT.append(f"{name}: {counts['refused']} of {counts.total()} damaged files refused, the others answered")
    assert counts["refused"]


@both(30)
def test_damaged_settings_of_a_model(most: int, intact: Path, tmp_path: Path) -> None:
    """The damage of tokenizer.json and of weights is in tests/tokenizer and test_damage.py."""
    folder = shutil.copytree(intact, tmp_path / "model")
    settings = [name for name in SETTINGS if (folder / name).exists()]
    counts: Counter[str] = Counter()

    @sampled(most)
    @given(chances, values)
    def run(chance: random.Random, value: Any) -> None:
        path = folder / chance.choice(settings)
        before = path.read_bytes()
        path.write_bytes(damaged_json(before, chance, value))
        counts[outcome(folder)] += 1
        path.write_bytes(before)

    run()
    report("settings", counts)


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_weights_too_large_for_finite_numbers_are_refused(backend: str, intact: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(intact, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for draw in range(3):
        rng = np.random.default_rng(draw)
        # All of one sign, so that sums are as large as possible; or of both signs.
        signs = {name: 1 if draw == 0 else rng.choice([-1, 1], tensor.shape) for name, tensor in tensors.items()}
        full = {name: (np.full(one.shape, 1e6) * signs[name]).astype(np.float32) for name, one in tensors.items()}
        save_file(full, folder / "model.safetensors")
        output = BertModel.from_pretrained(folder, backend=backend)(np.arange(40).reshape(2, 20))
        assert all(np.isfinite(state).all() for state in output.hidden_states)
    name = "encoder.layer.0.attention.output.LayerNorm.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][3] = 1.001e6
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match=name):
        BertModel.from_pretrained(folder, backend=backend)


# --- corpora ----------------------------------------------------------------------------------------------------------

LINES = [b"", b" ", b"\xff\xfe", b"a\x00b", b"\xef\xbb\xbfcat", b"cat\r", b'"open', b"{", b"[]", b"null", b'"cat"']
LINES += [b'{"text": "cat"}', b'{"text": 3}', b'{"text": null}', b'{"text": "\\ud800"}']
encoded = st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))
lines = st.lists(st.sampled_from(LINES) | encoded, max_size=8)


@both(20)
def test_unusual_corpora(most: int, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is the vector of its text alone; a run that fails leaves no output."""
    model, counts = SentenceTransformer(str(intact), backend="kernels"), Counter[str]()

    @sampled(most)
    @given(lines, st.sampled_from(["text", "jsonl", "csv"]), st.sampled_from(["stop", "skip", "null"]))
    def run(chosen: list[bytes], kind: str, on_error: str) -> None:
        folder = tmp_path / str(counts.total())
        folder.mkdir()
        source, target = folder / "lines", folder / "out.npy"
        source.write_bytes((b"text\n" if kind == "csv" else b"") + b"\n".join(chosen))
        before = source.read_bytes()
        options = ["--backend", "kernels", "--input-format", kind, "--on-error", on_error, "--truncation", "silent"]
        code = main(["embed", "-m", str(intact), "-i", str(source), "-o", str(target), *options])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert source.read_bytes() == before
        counts["answered" if code == 0 else "refused"] += 1
        if code:
            assert said.strip()
            assert not target.exists()
            return
        vectors = np.load(target)
        if kind == "text" and on_error == "stop":
            rows = before.decode("utf-8-sig").split("\n")
            texts = [row.removesuffix("\r") for row in (rows[:-1] if rows[-1] == "" else rows)]
            assert len(vectors) == len(texts)
            for vector, text in zip(vectors, texts, strict=True):
                np.testing.assert_array_equal(vector, model.encode(text, truncation="silent"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    report("corpora", counts)
