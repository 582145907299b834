"""The weights of a port's file, and the ids of llama.cpp's tokenizer: what else is wrong is found beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minibert import BertModel, SentenceTransformer, parity
from minibert.cli import main
from minibert.parity.diagnosis import simulate
from minibert.parity.diagnosis.formulas.precision import ROUNDINGS
from minibert.parity.inputs import of_texts
from minibert.parity.llama_words import llama_mistake, llama_word
from minibert.parity.truth import VECTOR, Padded, Subject
from tests.support.checkpoints import random_checkpoint
from tests.support.gguf_files import gguf_bytes, llama_names, metadata_of, random_blocks, stored

SIZES: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("plain"), **SIZES, max_position_embeddings=24)


def rounded(plain: Path, folder: Path, rounding: str) -> BertModel:
    """Write a port's folder, whose matrices are rounded, and return its model."""
    arrays = load_file(plain / "model.safetensors")
    matrices = {name: array for name, array in arrays.items() if array.ndim == 2}
    (folder / "config.json").write_bytes((plain / "config.json").read_bytes())
    save_file(arrays | {n: ROUNDINGS[rounding](a, a) for n, a in matrices.items()}, folder / "model.safetensors")
    return BertModel.from_pretrained(folder, backend="numpy")


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_rounding_of_a_file_is_named_and_only_the_engines_mistake_is_left(
    plain: Path, tmp_path: Path, rounding: str
) -> None:
    model, theirs = BertModel.from_pretrained(plain, backend="numpy"), rounded(plain, tmp_path, rounding)
    inputs = parity.probe(model).inputs
    right, wrong = (simulate(theirs, inputs, mistake, record="hidden_states.*") for mistake in ((), "G1.tanh"))
    report = parity.check(model, right, inputs, weights=tmp_path)
    assert (report.verdict, report.exit_code) == ("float32", 0)
    words = {"float16": "rounded to float16", "bfloat16": "rounded to bfloat16", "q8_0": "8 bits in blocks"}
    words |= {"q4_0": "4 bits in blocks", "int8": "8 bits, with one scale each", "int4": "4 bits, with one scale each"}
    words |= {f"int{bits}-rows": f"{bits} bits, with one scale for each row" for bits in (8, 4)}
    assert f"{tmp_path}, not the checkpoint's" in str(report).splitlines()[0]
    [warning] = [warning for warning in report.warnings if warning.startswith("weights: ")]
    assert words[rounding] in warning
    assert "RMS error of about" not in warning
    report = parity.check(model, wrong, inputs, weights=tmp_path)
    assert [finding.mistake for finding in report.diagnosis] == ["G1.tanh"]


def test_a_gguf_file(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pooler is not in it, and a type of ggml that has no name in the catalogue is said by its error."""
    model = BertModel.from_pretrained(plain, backend="numpy")
    arrays = llama_names(load_file(plain / "model.safetensors"))
    own = {name: stored(array) for name, array in arrays.items()}
    own["blk.1.ffn_up.weight"] = (6, arrays["blk.1.ffn_up.weight"].shape, random_blocks(6, 128 * 64 // 32))
    path = tmp_path / "port.gguf"
    path.write_bytes(gguf_bytes(metadata_of(model.config), own))
    inputs = parity.probe(model).inputs
    port = BertModel.from_pretrained(path, backend="numpy").trace(**inputs, record="hidden_states.*")
    dump = tmp_path / "dump.npz"
    np.savez(dump, **{f"hidden_states.{i}": port[f"hidden_states.{i}"] for i in range(3)}, **inputs)
    assert main(["parity", "check", str(dump), "-m", str(plain), "--weights", str(path), "--backend", "numpy"]) == 0
    printed = capsys.readouterr().out
    assert "1 tensor of" in printed
    assert "RMS error of about" in printed
    assert "encoder.layer.1.intermediate.dense.weight" in printed
    assert "pooler.dense.weight" in printed.partition("not in the file")[2]


def test_the_same_weights_say_nothing(plain: Path) -> None:
    model = BertModel.from_pretrained(plain)
    inputs = parity.probe(model).inputs
    report = parity.check(model, model.trace(**inputs, record="hidden_states.*"), inputs, weights=plain)
    assert (report.verdict, report.warnings) == ("bits", [])


def test_weights_of_another_model_are_refused(plain: Path, tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "other")
    model = BertModel.from_pretrained(plain, backend="numpy")
    with pytest.raises(ValueError, match=r"config\.json|shape"):
        parity.check(model, {}, parity.probe(model).inputs, weights=tmp_path / "other")


# --- llama.cpp's tokenizer --------------------------------------------------------------------------------------------

TEXTS = ["हिन्दी में लिखा", "한국어 문장입니다", "a river bank", "இந்த வார்த்தை"]


@pytest.mark.parametrize(
    ("word", "read"),
    [("हिन्दी", "हनद"), ("한국어", "ᄒᄀᄋ"), ("ᄒ\u1161\u11ab", "ᄒ"), ("é", "e"), ("river", "river"), ("৩", "৩")],
)
def test_what_llama_looks_up(word: str, read: str) -> None:
    """As libllama 0.5.0 does it."""
    assert llama_word(word) == read


def test_ids_and_vectors_of_llama_are_named(minilm_folder: Path) -> None:
    model = SentenceTransformer(minilm_folder, backend="numpy")
    inputs, mistake = of_texts(Subject.of(model), TEXTS), llama_mistake(model.tokenizer)
    port = simulate(model.model, inputs, mistake, record=VECTOR)
    [finding] = parity.check(model, port, inputs).diagnosis
    assert finding.mistake == "T2.llama"
    assert mistake.inputs is not None
    ids = mistake.inputs(Padded.of(model.model.config, inputs), model.model.config).ids
    [finding] = parity.check(model, {"input_ids": ids, **port}, inputs).diagnosis
    assert (finding.mistake, finding.names) == ("T2.llama", ("input_ids",))
    unknown = inputs["input_ids"].copy()
    unknown[2, 2] = model.tokenizer.unk_token_id  # as for a word that llama.cpp knows without its vowel signs
    [finding] = parity.check(model, {"input_ids": ids}, inputs | {"input_ids": unknown}).diagnosis
    assert finding.mistake == "T2.llama"
    english = of_texts(Subject.of(model), TEXTS[2:3])
    with pytest.raises(ValueError, match=r"T2\.llama is not possible"):
        simulate(model.model, english, mistake)
