"""config.json: every field that changes numbers is honoured, every other field is ignored or refused by name."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import BertConfig, BertModel, BertTokenizer, ModelFormatError, SentenceTransformer
from minibert.bert.families import EXTRA
from minibert.bert.reference import ACTIVATIONS
from minibert.checkpoint.files import locate
from tests.support.checkpoints import random_checkpoint, sentence_model, sizes

# The largest difference of all cases of this file between minibert and transformers is 3.9e-6 (with 13 layers).
TOLERANCE = 1e-5

SMALL = sizes(V=40, H=24, L=2, A=3, F=33, P=16, types=2)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


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


def run_like_transformers(folder: Path) -> np.ndarray:
    """Run a checkpoint, compare every hidden state with that of transformers, and return the last one."""
    model = BertModel.from_pretrained(folder)
    inputs = inputs_for(model.config)
    output = model(**inputs)

    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(
            **{name: torch.from_numpy(value) for name, value in inputs.items()}, output_hidden_states=True
        )
    # transformers collects no hidden state if there are no layers.
    states = expected.hidden_states or (expected.last_hidden_state,)
    assert len(output.hidden_states) == len(states) == model.config.num_hidden_layers + 1
    visible = inputs["attention_mask"].astype(bool)
    for ours, other in zip(output.hidden_states, states, strict=True):
        np.testing.assert_allclose(ours[visible], other.numpy()[visible], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(output.pooler_output, expected.pooler_output.numpy(), rtol=0, atol=TOLERANCE)
    return output.last_hidden_state


# --- fields that change numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        *(("hidden_act", "relu" if name == "gelu" else "gelu", name) for name in ACTIVATIONS),
        *(("layer_norm_eps", 1e-12, eps) for eps in (1e-4, 1e-3, 0.5, 3.0)),
        *(("num_attention_heads", 3, heads) for heads in (1, 2, 4, 6, 8, 12, 24)),
    ],
)
def test_a_field_changes_the_output(tmp_path: Path, field: str, before: object, after: object) -> None:
    random_checkpoint(tmp_path, **{**SMALL, field: before})
    first = run_like_transformers(tmp_path)
    edit_config(tmp_path, **{field: after})
    second = run_like_transformers(tmp_path)
    assert np.abs(second - first).max() > 10 * TOLERANCE


SHAPES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")


@pytest.mark.parametrize(
    "changes",
    [
        *({"vocab_size": value} for value in (1, 41, 1009)),
        *({"max_position_embeddings": value} for value in (1, 17, 600)),
        *({"type_vocab_size": value} for value in (1, 3, 16)),
        *({"intermediate_size": value} for value in (1, 24, 97)),
        *({"num_hidden_layers": value} for value in (0, 1, 13)),
        *({"hidden_size": value} for value in (3, 27, 51)),
        *(
            dict(zip(SHAPES, shape, strict=True))
            for shape in ((1, 1, 1, 1), (7, 1, 3, 31), (33, 3, 0, 5), (65, 5, 2, 129), (128, 2, 1, 512))
        ),
    ],
)
def test_sizes_with_their_checkpoint(tmp_path: Path, changes: dict[str, int]) -> None:
    run_like_transformers(random_checkpoint(tmp_path, **SMALL | changes))


# --- fields that do not change numbers --------------------------------------------------------------------------------


HARMLESS: dict[str, Any] = {
    **{"hidden_dropout_prob": 0.9, "attention_probs_dropout_prob": 0.9, "classifier_dropout": 0.9, "use_cache": True},
    **{"pad_token_id": 3, "initializer_range": 5, "transformers_version": "9", "is_decoder": False, "pruned_heads": {}},
    **{"add_cross_attention": False, "is_encoder_decoder": False, "position_embedding_type": "absolute"},
    **{"quantization_config": None, "torch_dtype": "float16", "dtype": "bfloat16", "trust_remote_code": True},
    **{"auto_map": {"AutoModel": "code.Model"}, "_attn_implementation_internal": "x/y", "num_labels": 7},
    **{"architectures": ["BertForMaskedLM"], "id2label": {"0": "a"}, "a field of tomorrow": [1, 2]},
    **{"output_hidden_states": False, "output_attentions": True, "return_dict": False},
}


def test_null_for_the_type_of_positions(tmp_path: Path) -> None:
    run_like_transformers(random_checkpoint(tmp_path, **SMALL, position_embedding_type=None))


def test_other_fields_change_nothing(tmp_path: Path) -> None:
    before = BertModel.from_pretrained(random_checkpoint(tmp_path, **SMALL))
    inputs = inputs_for(before.config)
    expected = before(**inputs).hidden_states
    for changes in (HARMLESS, {"pad_token_id": None}):
        edit_config(tmp_path, **changes)
        for first, second in zip(expected, BertModel.from_pretrained(tmp_path)(**inputs).hidden_states, strict=True):
            np.testing.assert_array_equal(first, second)


def test_fields_with_a_default_may_be_absent(tmp_path: Path) -> None:
    """The first BERT repositories do not have some fields; transformers uses the same default values."""
    names = ("type_vocab_size", "hidden_act", "layer_norm_eps", "pad_token_id")
    fields = {name: value for name, value in GOOD.items() if name not in (*names, "model_type")}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = BertConfig.from_pretrained(tmp_path)
    assert [getattr(config, name) for name in names] == [2, "gelu", 1e-12, 0]


# --- the class --------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_transformers() -> None:
    theirs = transformers.BertConfig()
    own = dataclasses.asdict(BertConfig())
    assert (own.pop("embedding_size"), own.pop("stated")) == (theirs.hidden_size, {})
    assert {own.pop(name) for name in EXTRA} == {None}  # of other families
    assert own == {name: getattr(theirs, name) for name in own}


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
    edit_config(tmp_path, hidden_act="tanh")
    found = BertModel.from_pretrained(tmp_path)(**inputs_for(config)).last_hidden_state
    np.testing.assert_array_equal(by_hand(**inputs_for(config)).last_hidden_state, found)
    assert by_hand.config is config
    with pytest.raises(TypeError, match="config"):
        BertModel.from_pretrained(tmp_path, config={})  # type: ignore[arg-type]


# --- features that are not implemented --------------------------------------------------------------------------------


NOT_IMPLEMENTED: dict[str, list[Any]] = {
    "model_type": ["deberta", "deberta-v2", "t5", None, ["bert"], "BERT"],
    **{name: [True] for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder")},
    "position_embedding_type": ["relative_key", "relative_key_query", "rotary"],
    "pruned_heads": [{"0": [1]}],
    "quantization_config": [{"load_in_8bit": True}],
    "hidden_act": ["gelu_10", "quick_gelu", "mish", "GELU", "", None, ["gelu"]],
}


@pytest.mark.parametrize("field", NOT_IMPLEMENTED)
def test_features_that_are_not_implemented_are_refused_by_name(tmp_path: Path, field: str) -> None:
    random_checkpoint(tmp_path, **SMALL)
    for value in NOT_IMPLEMENTED[field]:
        edit_config(tmp_path, **{field: value})
        with pytest.raises(ModelFormatError, match=rf"config\.json: {field}={re.escape(repr(value))}"):
            BertModel.from_pretrained(tmp_path)


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
        path = folder / name
        settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**settings, "auto_map": {"AutoModel": "code.Model"}}), encoding="utf-8")
    load(folder, trust_remote_code=False)
    with pytest.raises(ValueError, match="minibert never runs code, and this model has some"):
        load(folder, trust_remote_code=True)


@pytest.mark.parametrize("model_type", ["deberta", "deberta-v2"])
def test_another_forward_is_refused_with_a_model_that_loads(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelFormatError, match=f"model_type='{model_type}'.*that loads: [A-Z]?[a-zA-Z-]+/"):
        BertConfig.from_pretrained(tmp_path)
