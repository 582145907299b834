"""Checkpoints of TensorFlow with the names of google's BERT: the bits of safetensors, and what is refused."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

import minibert
from minibert import BertModel, ModelFormatError
from minibert.checkpoint.tensorflow import masked_crc32c, read_header
from minibert.cli import main
from minibert.compat.bert_serving import BertClient
from tests.support.damage import damaged_bytes
from tests.support.tensorflow_files import table, variables_of, write_checkpoint

GOOGLE = {  # the fields of google's bert_config.json
    **{
        "attention_probs_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "hidden_act": "gelu",
    },
    **{"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 3, "num_hidden_layers": 2},
    **{"max_position_embeddings": 30, "type_vocab_size": 2, "vocab_size": 60},
    **{"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"},  # of the Chinese one
}
IDS = np.random.default_rng(0).integers(5, 60, (3, 11))


def checkpoint(folder: Path, kind: str = "BertForPreTraining", **options: object) -> Path:
    """Write a random model for transformers into folder/safe, and as google's into folder/google; return this one."""
    torch.manual_seed(1)
    fields = {name: value for name, value in GOOGLE.items() if "pooler" not in name and name != "directionality"}
    model = getattr(transformers, kind)(transformers.BertConfig(**fields)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.05)
    model.save_pretrained(folder / "safe")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(55))]
    for name in ("safe", "google"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "vocab.txt").write_text("\n".join(words) + "\n")
    write_checkpoint(folder / "google", variables_of(load_file(folder / "safe/model.safetensors")), **GOOGLE, **options)
    return folder / "google"


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_has_the_bits_of_safetensors(tmp_path: Path, shards: int) -> None:
    folder = checkpoint(tmp_path)
    (index,) = folder.glob("*.index")
    write_checkpoint(folder, variables_of(load_file(tmp_path / "safe/model.safetensors")), shards=shards)
    expected = BertModel.from_pretrained(tmp_path / "safe")(IDS)
    for name in (folder, index, index.with_suffix(""), str(folder / "bert_model.ckpt")):
        found = BertModel.from_pretrained(name)(IDS)
        np.testing.assert_array_equal(found.hidden_states, expected.hidden_states)
        np.testing.assert_array_equal(found.pooler_output, expected.pooler_output)
    model = minibert.BertForPreTraining.from_pretrained(folder)
    assert type(minibert.load(folder)) is type(model)
    theirs = minibert.BertForPreTraining.from_pretrained(tmp_path / "safe")(IDS)
    np.testing.assert_array_equal(model(IDS).prediction_logits, theirs.prediction_logits)
    np.testing.assert_array_equal(model(IDS).seq_relationship_logits, theirs.seq_relationship_logits)
    tokenizers = [minibert.AutoTokenizer.from_pretrained(place) for place in (folder, tmp_path / "safe")]
    assert tokenizers[0]("word3 word9").input_ids == tokenizers[1]("word3 word9").input_ids


def test_answers_of_run_squad(tmp_path: Path) -> None:
    checkpoint(tmp_path, "BertForQuestionAnswering")
    ours, theirs = (minibert.load(tmp_path / name)(IDS) for name in ("google", "safe"))
    np.testing.assert_array_equal(ours.start_logits, theirs.start_logits)


def test_a_classifier_and_the_programs_that_take_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path, "BertForSequenceClassification")
    classifiers = [
        minibert.BertForSequenceClassification.from_pretrained(tmp_path / name) for name in ("safe", "google")
    ]
    np.testing.assert_array_equal(*(classifier(IDS).logits for classifier in classifiers))
    with BertClient(model=folder) as client:  # bert-as-service was given such folders
        assert client.encode(["word1 word2"]).shape == (1, 24)
    assert main(["info", "-m", str(folder)]) == 0
    assert "BertForSequenceClassification" in capsys.readouterr().out


def test_shared_weights_know_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two indexes of equal data are two models."""
    monkeypatch.setenv("MINIBERT_CACHE_DIR", str(tmp_path / "cache"))
    folder = checkpoint(tmp_path)
    data = (folder / "bert_model.ckpt.data-00000-of-00001").read_bytes()
    first = BertModel.from_pretrained(folder, shared_weights=True)(IDS).last_hidden_state
    variables = variables_of(load_file(tmp_path / "safe/model.safetensors"))
    query, key = (f"bert/encoder/layer_0/attention/self/{name}/kernel" for name in ("query", "value"))
    write_checkpoint(folder, {{query: key, key: query}.get(name, name): array for name, array in variables.items()})
    assert (folder / "bert_model.ckpt.data-00000-of-00001").read_bytes() == data
    second = BertModel.from_pretrained(folder, shared_weights=True)(IDS).last_hidden_state
    np.testing.assert_array_equal(second, BertModel.from_pretrained(folder)(IDS).last_hidden_state)
    assert np.abs(first - second).max() > 1e-4


def test_several_checkpoints_in_a_folder_need_a_name(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    for path in folder.glob("bert_model*"):
        shutil.copy(path, folder / path.name.replace("bert_model.ckpt", "model.ckpt-100"))
    with pytest.raises(ModelFormatError, match=r"several checkpoints of TensorFlow.*bert_model\.ckpt"):
        BertModel.from_pretrained(folder)
    expected = BertModel.from_pretrained(tmp_path / "safe")(IDS).last_hidden_state
    np.testing.assert_array_equal(BertModel.from_pretrained(folder / "model.ckpt-100")(IDS).last_hidden_state, expected)


def test_an_index_of_another_library_and_a_cased_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all-MiniLM-L6-v2.index").write_bytes(b"IxFI")  # of faiss
    checkpoint(tmp_path)
    assert minibert.BertConfig.from_pretrained("all-MiniLM-L6-v2").hidden_size == 384
    folder = tmp_path / "google"
    (folder / "vocab.txt").write_text((folder / "vocab.txt").read_text().replace("word54", "Paris"))
    with pytest.warns(UserWarning, match="do_lower_case"):
        minibert.AutoTokenizer.from_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert minibert.AutoTokenizer.from_pretrained(folder).tokenize("Paris") == ["Paris"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index, data: index.write_bytes(index.read_bytes()[:-1]), "not the index"),
        (lambda index, data: index.write_bytes(index.read_bytes().replace(b"word_emb", b"wOrd_emb")), "checksum"),
        (lambda index, data: data.unlink(), r"It has: .*bert_model\.ckpt\.index"),
        (lambda index, data: index.write_bytes(table({b"": b"\x08\x01\x10\x01"})), "big-endian"),
        (lambda index, data: index.write_bytes(table({b"_CHECKPOINTABLE_OBJECT_GRAPH": b""})), "TensorFlow 2"),
        (lambda index, data: data.write_bytes(data.read_bytes()[:999]), "not those of its shape or shard"),
        (lambda index, data: index.write_bytes(table({b"": b"\x08\x00"})), "0 shards"),
        (lambda index, data: index.write_bytes(table({b"": b"\x08\x01", b"x": b"\x08\x07"})), "'x' has the dtype 7"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, damage: object, message: str) -> None:
    folder = checkpoint(tmp_path)
    damage(folder / "bert_model.ckpt.index", folder / "bert_model.ckpt.data-00000-of-00001")  # type: ignore[operator]
    with pytest.raises(ModelFormatError, match=message):
        BertModel.from_pretrained(folder)


def test_1000_damaged_indexes_are_refused_or_read(tmp_path: Path) -> None:
    index = checkpoint(tmp_path) / "bert_model.ckpt.index"
    whole, chance, outcomes = index.read_bytes(), random.Random(0), Counter[str]()
    for _ in range(1000):
        index.write_bytes(damaged_bytes(whole, chance))
        try:
            read_header(index)
            outcomes["read"] += 1
        except ModelFormatError as error:
            outcomes["refused" if str(index) in str(error) else "useless message"] += 1
    assert outcomes["refused"] > 900
    assert not outcomes["useless message"]


def test_the_checksum_is_that_of_the_standard() -> None:
    crc = 0xE3069283  # RFC 3720: of the digits 1 to 9
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.slow
def test_what_tensorflow_itself_writes(tmp_path: Path) -> None:
    """The package is fetched into a virtual environment of its own."""
    folder = checkpoint(tmp_path)
    np.savez(tmp_path / "variables.npz", **variables_of(load_file(tmp_path / "safe/model.safetensors")))
    program = f"""
import numpy as np, tensorflow.compat.v1 as tf
tf.disable_eager_execution()
values = np.load({str(tmp_path / "variables.npz")!r})
variables = [tf.get_variable(name, initializer=values[name]) for name in values.files]
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver(variables).save(session, {str(folder / "bert_model.ckpt")!r}, write_meta_graph=False)
"""
    python = tmp_path / "environment/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "tensorflow-cpu==2.21.0"], check=True)
    before = (folder / "bert_model.ckpt.index").read_bytes()
    subprocess.run([python, "-c", program], check=True, env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "/usr/bin"})
    assert (folder / "bert_model.ckpt.index").read_bytes() != before
    expected = minibert.BertForPreTraining.from_pretrained(tmp_path / "safe")(IDS, output_hidden_states=True)
    found = minibert.BertForPreTraining.from_pretrained(folder)(IDS, output_hidden_states=True)
    np.testing.assert_array_equal(found.hidden_states, expected.hidden_states)
    np.testing.assert_array_equal(found.prediction_logits, expected.prediction_logits)
