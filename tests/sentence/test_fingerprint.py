"""Fingerprints: what changes them, what does not, and who shows and compares them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import minibert
from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from minibert.bert.rows import HEADS
from minibert.cli import main
from minibert.encode.plan import Plan
from minibert.models.fingerprint import NOT_COMPARED, differences
from minibert.vectors.multi_vectors import HierarchicalTokenPooling, LambdaTokenPooling
from tests.support.multi_vectors import bert_folder, native
from tests.support.safetensors_files import safetensors_bytes, stored
from tests.support.sentence_heads import model_folder
from tests.support.sentence_modules import MEAN, dense, model_with_modules

GOLDEN = "7a3f2dc2417d843302ecef74d63e69c634867a4ac4965a698362bef718cc3110"
"""That of all-MiniLM-L6-v2, on every machine."""

WEIGHTS, DENSE = "model.safetensors", "2_Dense/model.safetensors"
STORED = {"prompts": {"query": "the cat ", "document": "on the mat "}, "default_prompt_name": "document"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = model_with_modules(tmp_path_factory.mktemp("fingerprint") / "model", [MEAN, dense(24, 8)])
    (home / "config_sentence_transformers.json").write_text(json.dumps(STORED))
    (home / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    return home


@pytest.fixture(scope="module")
def parts(folder: Path) -> dict[str, Any]:
    return SentenceTransformer(folder).fingerprint_parts()


def flip(name: str, tensor: str, index: tuple[int, ...]) -> Callable[[Path], None]:
    """Return a change of the last bit of one number."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / name)
        tensors[tensor].view(np.int32)[index] ^= 1
        save_file(tensors, folder / name)

    return change


def edit(name: str, **fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **fields}))

    return change


def swap_tokens(folder: Path) -> None:
    lines = (folder / "vocab.txt").read_text().split("\n")
    first, second = lines.index("##0"), lines.index("##1")  # in none of the fixed texts
    lines[first], lines[second] = lines[second], lines[first]
    (folder / "vocab.txt").write_text("\n".join(lines))


def add_normalize(folder: Path) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    last = {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
    (folder / "modules.json").write_text(json.dumps([*listed, last]))


TOKENIZER, CONFIG, SETTINGS = "tokenizer_config.json", "config.json", "config_sentence_transformers.json"
OF_FILES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "a bit of a layer": (flip(WEIGHTS, "encoder.layer.0.output.dense.weight", (3, 5)), {"weights", "results"}),
    "a bit of an unused word": (flip(WEIGHTS, "embeddings.word_embeddings.weight", (-1, 0)), {"weights"}),
    "a bit of a module": (flip(DENSE, "linear.bias", (0,)), {"modules", "results"}),
    "eps": (edit(CONFIG, layer_norm_eps=1e-3), {"config.layer_norm_eps", "results"}),
    "the activation": (edit(CONFIG, hidden_act="gelu_new"), {"config.hidden_act", "results"}),
    "the number of heads": (edit(CONFIG, num_attention_heads=4), {"config.num_attention_heads", "results"}),
    "two tokens": (swap_tokens, {"tokenizer"}),
    "upper case": (edit(TOKENIZER, do_lower_case=False), {"tokenizer", "results"}),
    "accents": (edit(TOKENIZER, strip_accents=False), {"tokenizer", "results"}),
    "Chinese characters": (edit(TOKENIZER, tokenize_chinese_chars=False), {"tokenizer", "results"}),
    "the side that is cut": (edit(TOKENIZER, truncation_side="left"), {"tokenizer", "results"}),
    "the pooling": (edit("1_Pooling/config.json", pooling_mode="cls"), {"modules", "results"}),
    "prompts in the pooling": (edit("1_Pooling/config.json", include_prompt=False), {"modules", "results"}),
    "the activation of a module": (
        edit("2_Dense/config.json", activation_function="torch.nn.modules.linear.Identity"),
        {"modules", "results"},
    ),
    "one module more": (add_normalize, {"modules", "results"}),
    "the prompt of queries": (edit(SETTINGS, prompts={**STORED["prompts"], "query": "x "}), {"prompts"}),
    "the default prompt": (edit(SETTINGS, default_prompt_name="query"), {"default_prompt_name", "results"}),
    "the dimension": (edit(SETTINGS, truncate_dim=4), {"truncate_dim", "results"}),
    "the limit": (edit("sentence_bert_config.json", max_seq_length=39), {"max_seq_length", "results"}),
}


@pytest.mark.parametrize("change", OF_FILES)
def test_each_change_of_the_files_changes_it(folder: Path, tmp_path: Path, parts: dict[str, Any], change: str) -> None:
    make, names = OF_FILES[change]
    make(shutil.copytree(folder, tmp_path / "model"))
    assert {*differences(parts, SentenceTransformer(tmp_path / "model").fingerprint_parts())} - {"results"} == names - {
        "results"
    }
    assert SentenceTransformer(tmp_path / "model").fingerprint() != SentenceTransformer(folder).fingerprint()


IN_PYTHON: dict[str, tuple[Callable[[Any], object], str]] = {
    "max_seq_length": (lambda model: setattr(model, "max_seq_length", 20), "max_seq_length"),
    "truncate_dim": (lambda model: setattr(model, "truncate_dim", 3), "truncate_dim"),
    "prompts": (lambda model: model.prompts.update(query="other "), "prompts"),
    "include_prompt": (lambda model: model.set_pooling_include_prompt(False), "modules"),
    "a special token": (lambda model: model.tokenizer.add_special_token("##9"), "tokenizer"),
}


@pytest.mark.parametrize("change", IN_PYTHON)
def test_each_setting_of_a_model_changes_it(folder: Path, parts: dict[str, Any], change: str) -> None:
    model = SentenceTransformer(folder)
    IN_PYTHON[change][0](model)
    assert IN_PYTHON[change][1] in differences(parts, model.fingerprint_parts())


def test_other_bits_change_it(folder: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Plan.compute
    monkeypatch.setattr(Plan, "compute", lambda *a: np.nextafter(compute(*a), np.float32(np.inf), dtype=np.float32))
    assert differences(parts, SentenceTransformer(folder).fingerprint_parts()) == ["results"]
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # slower on some processors
        low = {name: SentenceTransformer(folder, compute_type=name).fingerprint() for name in ("int16", "int8")}
    assert len({minibert.SentenceTransformer(folder).fingerprint(), *low.values()}) == 3


def test_names_files_threads_and_labels_do_not_change_it(folder: Path, tmp_path: Path, parts: dict[str, Any]) -> None:
    copied = shutil.copytree(folder, tmp_path / "other name")
    edit(CONFIG, id2label={0: "x", 1: "y"}, _name_or_path="z", transformers_version="0")(copied)
    edit(SETTINGS, similarity_fn_name="dot")(copied)
    tensors = load_file(copied / WEIGHTS)
    (copied / WEIGHTS).write_bytes(safetensors_bytes({name: stored(x, "F64") for name, x in tensors.items()}))
    model = SentenceTransformer(folder)
    model.save_pretrained(tmp_path / "saved")
    for name, options in (
        (copied, {}),
        (tmp_path / "saved", {}),
        (folder, {"num_threads": 3, "idle_release": 1.0}),
        (folder, {"shared_weights": True}),
    ):
        other = SentenceTransformer(name, **options)  # type: ignore[arg-type]
        assert differences(parts, other.fingerprint_parts()) == []
        assert other.fingerprint() == model.fingerprint()
    numpy = SentenceTransformer(folder, backend="numpy").fingerprint_parts()
    assert differences(parts, numpy) == ["results"]
    assert numpy["results"] == NOT_COMPARED  # its bits depend on the BLAS


@pytest.mark.parametrize("name", ["BertModel", *HEADS])
def test_each_class_has_one(folder_of: Callable[[str], Path], name: str) -> None:
    folder = folder_of("BertForPreTraining" if name == "BertModel" else name)
    model: Any = getattr(minibert, name).from_pretrained(folder)
    found = {model.fingerprint(), getattr(minibert, name).from_pretrained(folder, num_threads=2).fingerprint()}
    found |= {getattr(minibert, name).from_pretrained(folder, backend="numpy").fingerprint()}
    assert len(found) == 2  # NumPy's is another one
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.fingerprint()


def test_encoders_with_other_results(tmp_path: Path) -> None:
    reranker, splade = (
        model_folder(tmp_path / name, f"BertFor{name}") for name in ("SequenceClassification", "MaskedLM")
    )
    late = native(bert_folder(tmp_path / "bert"), tmp_path / "late")
    queries: list[Any] = [
        lambda: CrossEncoder(reranker),
        lambda: CrossEncoder(reranker, activation_fn="Sigmoid"),
        lambda: CrossEncoder(reranker, activation_fn=lambda logits: logits * 2),
        lambda: CrossEncoder(reranker, activation_fn=lambda logits: logits * 3),
        lambda: CrossEncoder(reranker, max_length=12),
        lambda: CrossEncoder(reranker, prompts={"a": "the "}),
        lambda: SparseEncoder(splade),
        lambda: SparseEncoder(splade, max_active_dims=3),
        lambda: MultiVectorEncoder(late),
        lambda: MultiVectorEncoder(late).append(HierarchicalTokenPooling(2)),
        lambda: MultiVectorEncoder(late).append(LambdaTokenPooling(lambda vectors: vectors[:1])),
        lambda: MultiVectorEncoder(late, prompts={"query": "the "}),
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no modules.json")
        found = [make().fingerprint() for make in queries]
        assert [make().fingerprint() for make in queries] == found
    assert len({*found}) == len(queries)


def test_it_neither_warns_nor_silences_a_warning(short_folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no modules.json")
        model = SentenceTransformer(short_folder)
    model.fingerprint()  # a warning is an error here
    with pytest.warns(UserWarning, match=r"Most tokens of a text are \[UNK\]"):
        model.encode("東京 東京")


def test_it_is_that_of_every_machine(minilm_sentences: SentenceTransformer, capsys: pytest.CaptureFixture[str]) -> None:
    assert minilm_sentences.fingerprint() == GOLDEN != minilm_sentences.model.fingerprint()
    assert main(["fingerprint", "--threads", "2"]) == 0
    assert capsys.readouterr().out == f"{GOLDEN}\n"
    command = [sys.executable, "-m", "minibert", "fingerprint", "--json", "-m", "all-MiniLM-L6-v2"]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert printed == {"fingerprint": GOLDEN, "parts": minilm_sentences.fingerprint_parts()}


@pytest.mark.parametrize("kind", ["reranker", "late"])
def test_the_command_line_finds_the_class(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    if kind == "late":
        folder, model = native(bert_folder(tmp_path / "bert"), tmp_path / "late"), MultiVectorEncoder
    else:
        folder, model = model_folder(tmp_path / "model", "BertForSequenceClassification"), CrossEncoder  # type: ignore[assignment]
    assert main(["fingerprint", "-m", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == model(folder).fingerprint()
