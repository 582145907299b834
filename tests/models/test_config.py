"""config.json of BERT: extreme sizes, unusable values, code of a repository; test_family_configs.py has the fields."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from minibert import BertConfig, BertModel, BertTokenizer, ModelFormatError, SentenceTransformer
from minibert.checkpoint.files import locate
from tests.support.checkpoints import random_checkpoint, sentence_model, sizes
from tests.support.json_files import change_json
from tests.support.model_calls import run

# The largest difference of all cases of this file between minibert and transformers is 3.9e-6 (with 13 layers).
TOLERANCE = 1e-5

SMALL = sizes(V=40, H=24, L=2, A=3, F=33, P=16, types=2)


def inputs_for(config: BertConfig) -> dict[str, np.ndarray]:
    """Make random inputs that use the last row of every table."""
    random = np.random.default_rng(1)
    shape = (2, min(6, config.max_position_embeddings))
    ids = random.integers(config.vocab_size, size=shape)
    types = random.integers(config.type_vocab_size, size=shape)
    positions = random.integers(config.max_position_embeddings, size=shape)
    ids[0, 0], types[0, 0] = config.vocab_size - 1, config.type_vocab_size - 1
    positions[0, 0] = config.max_position_embeddings - 1
    mask = np.ones(shape, dtype=np.int64)
    mask[1, shape[1] // 2 + 1 :] = 0
    return {"input_ids": ids, "token_type_ids": types, "position_ids": positions, "attention_mask": mask}


# --- sizes ------------------------------------------------------------------------------------------------------------

SHAPES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")


@pytest.mark.parametrize(
    "changes",
    [
        *({name: 1} for name in ("vocab_size", "max_position_embeddings", "type_vocab_size", "intermediate_size")),
        *({"type_vocab_size": 16}, {"num_hidden_layers": 0}, {"num_hidden_layers": 13}, {"hidden_size": 3}),
        *(
            dict(zip(SHAPES, shape, strict=True))
            for shape in ((1, 1, 1, 1), (7, 1, 3, 31), (33, 3, 0, 5), (65, 5, 2, 129), (128, 2, 1, 512))
        ),
    ],
)
def test_extreme_sizes_equal_transformers(tmp_path: Path, changes: dict[str, int]) -> None:
    model = BertModel.from_pretrained(random_checkpoint(tmp_path, **SMALL | changes))
    inputs = inputs_for(model.config)
    output = model(**inputs)
    theirs = transformers.BertModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    expected = run(theirs, inputs, output_hidden_states=True)
    # transformers collects no hidden state if there are no layers.
    states = expected.hidden_states or (expected.last_hidden_state,)
    assert len(output.hidden_states) == len(states) == model.config.num_hidden_layers + 1
    visible = inputs["attention_mask"].astype(bool)
    for ours, other in zip(output.hidden_states, states, strict=True):
        np.testing.assert_allclose(ours[visible], other.numpy()[visible], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(output.pooler_output, expected.pooler_output.numpy(), rtol=0, atol=TOLERANCE)


# --- the class --------------------------------------------------------------------------------------------------------


def test_a_config_is_comparable_and_goes_through_a_dict() -> None:
    config = BertConfig(**SMALL, hidden_act="relu")
    assert BertConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["model_type"] == "bert"
    assert config != BertConfig(**SMALL)
    assert config.head_size == 8


def test_a_config_given_by_hand_replaces_the_one_of_the_model(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, **SMALL)
    config = dataclasses.replace(BertConfig.from_pretrained(tmp_path), hidden_act="tanh")
    by_hand = BertModel.from_pretrained(tmp_path, config=config)
    change_json(tmp_path / "config.json", hidden_act="tanh")
    found = BertModel.from_pretrained(tmp_path)(**inputs_for(config)).last_hidden_state
    np.testing.assert_array_equal(by_hand(**inputs_for(config)).last_hidden_state, found)
    assert by_hand.config is config
    with pytest.raises(TypeError, match="config"):
        BertModel.from_pretrained(tmp_path, config={})  # type: ignore[arg-type]


# --- unusable values --------------------------------------------------------------------------------------------------

SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings"),
)
GOOD = {"model_type": "bert", **SMALL, "hidden_act": "gelu", "layer_norm_eps": 1e-12}


def with_field(name: str, literal: str) -> bytes:
    """Return GOOD with one field replaced by this JSON text."""
    fields = ", ".join(f'"{n}": {literal if n == name else json.dumps(v)}' for n, v in GOOD.items())
    return f"{{{fields}}}".encode()


WRONG_SIZES = ('"24"', "true", "12.0", "null", "[24]", "-24", str(10**12), "1" + 4000 * "0")
NOT_NUMBERS = ("1" + 5000 * "0", "NaN", "Infinity", "1e999")
WRONG_EPS = ("0", "0.0", "-1e-12", '"1e-12"', "true", "null", "[]", "1" + 400 * "0")
WHOLE = with_field("", "")

UNUSABLE: list[tuple[str, list[bytes]]] = [
    *((name, [with_field(name, text) for text in WRONG_SIZES]) for name in (*SIZES, "type_vocab_size")),
    *((name, [with_field(name, "0")]) for name in (*SIZES, "type_vocab_size") if name != "num_hidden_layers"),
    *((f"{name}.*absent", [with_field(name, "").replace(f'"{name}": , '.encode(), b"")]) for name in SIZES),
    ("number|digits|large", [with_field(name, text) for name in (*SIZES, "layer_norm_eps") for text in NOT_NUMBERS]),
    ("layer_norm_eps=", [with_field("layer_norm_eps", text) for text in WRONG_EPS]),
    ("pad_token_id=", [
        b'{"pad_token_id": ' + text + b", " + WHOLE[1:] for text in (b'"0"', b"false", b"1" + 12 * b"0")]),
    ("num_attention_heads=", [with_field("num_attention_heads", heads) for heads in ("5", "48")]),
    ("twice", [b'{"hidden_size": 12, ' + WHOLE[1:]]),
    ("expected an object", [b"[" + WHOLE + b"]", b'"bert"', b"12", b"null"]),
    ("absent", [b"{}", json.dumps({f"field {i}": i for i in range(10_000)}).encode()]),
    ("hidden_act=", [with_field("hidden_act", json.dumps(100_000 * "gelu"))]),
    ("model_type=", [with_field("model_type", json.dumps(100_000 * "bert"))]),
    ("vocab_size=", [with_field("vocab_size", json.dumps(100_000 * "4"))]),
]  # fmt: skip


@pytest.mark.parametrize(("word", "contents"), UNUSABLE, ids=[word for word, _ in UNUSABLE])
def test_an_unusable_config_is_refused_with_file_and_field(tmp_path: Path, word: str, contents: list[bytes]) -> None:
    path = tmp_path / "config.json"
    path.touch()
    files = locate(tmp_path)
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ModelFormatError, match=word) as caught:
            BertConfig.from_files(files)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 1000, "the message is too long to read"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE)  # a byte order mark is tolerated
    assert BertConfig.from_files(files) == BertConfig(**SMALL)


def test_values_given_in_python_are_checked_too() -> None:
    for name, value in (
        *(("vocab_size", 10**5000), ("hidden_size", -(10**5000)), ("hidden_size", np.int64(24))),
        *(("layer_norm_eps", value) for value in (10**400, 10**5000, float("nan"))),
        ("num_hidden_layers", True),
    ):
        with pytest.raises(ModelFormatError, match=name):
            BertConfig(**{**SMALL, name: value})


@pytest.mark.parametrize("loader", [BertConfig, BertModel, BertTokenizer, SentenceTransformer])
def test_code_of_a_repository_is_asked_for_only_where_there_is_none(loader: Any, tmp_path: Path) -> None:
    """Libraries pass trust_remote_code=True for every model. It is refused where transformers would run code."""
    folder = sentence_model(tmp_path / "model")
    load = getattr(loader, "from_pretrained", loader)
    load(folder, trust_remote_code=True)
    for name in ("config.json", "tokenizer_config.json"):
        change_json(folder / name, auto_map={"AutoModel": "code.Model"})
    load(folder, trust_remote_code=False)
    with pytest.raises(ValueError, match="minibert never runs code, and this model has some"):
        load(folder, trust_remote_code=True)


@pytest.mark.parametrize("model_type", ["deberta", "deberta-v2"])
def test_another_forward_is_refused_with_a_model_that_loads(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelFormatError, match=f"model_type='{model_type}'.*that loads: [A-Z]?[a-zA-Z-]+/"):
        BertConfig.from_pretrained(tmp_path)
