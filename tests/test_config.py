"""config.json: every field that changes numbers is honoured, every other field is ignored or refused by name."""

from __future__ import annotations

import dataclasses
import json
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import BertConfig, BertModel, BertTokenizer, ModelFormatError, SentenceTransformer
from minibert.bert.config import ACTIVATIONS
from minibert.checkpoint.files import locate
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.report import REPORT

# The largest difference of all cases of this file between minibert and transformers is 3.9e-6 (with 13 layers).
TOLERANCE = 1e-5

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 33,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}


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
def test_a_field_beside_the_same_weights_changes_the_output(
    tmp_path: Path, field: str, before: object, after: object
) -> None:
    random_checkpoint(tmp_path, **{**SMALL, field: before})
    first = run_like_transformers(tmp_path)
    edit_config(tmp_path, **{field: after})
    second = run_like_transformers(tmp_path)
    assert np.abs(second - first).max() > 10 * TOLERANCE


def test_the_activations_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "minibert" / "models" / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"`hidden_act`: ([\w, ]+) \|", page)
    assert listed is not None
    assert listed[1].split(", ") == list(ACTIVATIONS)
    assert len(ACTIVATIONS) >= 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("vocab_size", value) for value in (1, 2, 41, 1009)),
        *(("max_position_embeddings", value) for value in (1, 2, 17, 600)),
        *(("type_vocab_size", value) for value in (1, 3, 16)),
        *(("intermediate_size", value) for value in (1, 2, 24, 97)),
        *(("num_hidden_layers", value) for value in (0, 1, 3, 13)),
        *(("hidden_size", value) for value in (3, 27, 51)),
    ],
)
def test_a_size_with_its_checkpoint(tmp_path: Path, field: str, value: int) -> None:
    random_checkpoint(tmp_path, **{**SMALL, field: value})
    run_like_transformers(tmp_path)


@pytest.mark.parametrize(
    ("hidden", "heads", "layers", "intermediate"),
    [
        (1, 1, 1, 1),
        (7, 7, 1, 5),
        (7, 1, 3, 31),
        (21, 7, 2, 1),
        (33, 3, 0, 5),
        (45, 9, 1, 64),
        (65, 5, 2, 129),
        (128, 2, 1, 512),
    ],
)
def test_odd_shapes(tmp_path: Path, hidden: int, heads: int, layers: int, intermediate: int) -> None:
    random_checkpoint(
        tmp_path,
        **{
            **SMALL,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "intermediate_size": intermediate,
        },
    )
    run_like_transformers(tmp_path)


@pytest.mark.parametrize(
    ("field", "argument", "inputs"),
    [
        ("vocab_size", "input_ids", {}),
        ("type_vocab_size", "token_type_ids", {"input_ids": [[1]]}),
        ("max_position_embeddings", "position_ids", {"input_ids": [[1]]}),
    ],
)
def test_each_table_ends_where_its_field_says(
    tmp_path: Path, field: str, argument: str, inputs: dict[str, Any]
) -> None:
    random_checkpoint(tmp_path, **{**SMALL, field: 5})
    model = BertModel.from_pretrained(tmp_path)
    outputs = [model(**{**inputs, argument: [[i]]}).last_hidden_state for i in range(5)]
    for i in range(5):
        for j in range(i):
            assert np.abs(outputs[i] - outputs[j]).max() > 10 * TOLERANCE, "two rows give the same"
    with pytest.raises(ValueError, match=rf"{argument} at row 0, column 0 is 5; valid are 0 to 4 \({field}=5\)"):
        model(**{**inputs, argument: [[5]]})


def test_a_layer_more_changes_the_output(tmp_path: Path) -> None:
    """The first layers of both checkpoints are equal, so the shorter one ends in a middle state of the other."""
    from safetensors.numpy import load_file, save_file

    random_checkpoint(tmp_path, **{**SMALL, "num_hidden_layers": 3})
    longer = BertModel.from_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if ".layer.2." not in n}, tmp_path / "model.safetensors")
    edit_config(tmp_path, num_hidden_layers=2)
    shorter = BertModel.from_pretrained(tmp_path)
    inputs = inputs_for(longer.config)
    np.testing.assert_array_equal(shorter(**inputs).last_hidden_state, longer(**inputs).hidden_states[2])
    assert np.abs(shorter(**inputs).last_hidden_state - longer(**inputs).last_hidden_state).max() > 10 * TOLERANCE


# --- fields that do not change numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_dropout_prob": 0.9, "attention_probs_dropout_prob": 0.9, "classifier_dropout": 0.9},
        {"pad_token_id": 3},
        {"pad_token_id": None},
        {"use_cache": True, "initializer_range": 5, "transformers_version": "9"},
        {"is_decoder": False, "add_cross_attention": False, "is_encoder_decoder": False, "pruned_heads": {}},
        {"position_embedding_type": "absolute", "quantization_config": None},
        {"torch_dtype": "float16", "dtype": "bfloat16"},
        {"auto_map": {"AutoModel": "code.Model"}, "_attn_implementation_internal": "x/y", "trust_remote_code": True},
        {"architectures": ["BertForMaskedLM"], "num_labels": 7, "id2label": {"0": "a"}, "a field of tomorrow": [1, 2]},
        {"output_hidden_states": False, "output_attentions": True, "return_dict": False},
    ],
)
def test_other_fields_change_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    random_checkpoint(tmp_path, **SMALL)
    before = BertModel.from_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    after = BertModel.from_pretrained(tmp_path)
    inputs = inputs_for(before.config)
    for first, second in zip(before(**inputs).hidden_states, after(**inputs).hidden_states, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("absent", ["model_type", "type_vocab_size", "hidden_act", "layer_norm_eps", "pad_token_id"])
def test_fields_with_a_default_may_be_absent(tmp_path: Path, absent: str) -> None:
    """The first BERT repositories do not have some fields; transformers uses the same default values."""
    random_checkpoint(tmp_path, **SMALL)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    fields.pop(absent, None)
    path.write_text(json.dumps(fields))
    assert (
        getattr(BertConfig.from_pretrained(tmp_path), absent, "bert")
        == {
            "model_type": "bert",
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
        }[absent]
    )


# --- the class --------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_transformers() -> None:
    theirs = transformers.BertConfig()
    assert dataclasses.asdict(BertConfig()) == {f.name: getattr(theirs, f.name) for f in dataclasses.fields(BertConfig)}


def test_a_config_is_frozen_comparable_and_goes_through_a_dict() -> None:
    config = BertConfig(**SMALL, hidden_act="relu")
    assert BertConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["model_type"] == "bert"
    assert config != BertConfig(**SMALL)
    assert config.head_size == 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 12  # type: ignore[misc]


def test_a_config_given_by_hand_replaces_the_one_of_the_model(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, **SMALL)
    config = dataclasses.replace(BertConfig.from_pretrained(tmp_path), hidden_act="tanh")
    by_hand = BertModel.from_pretrained(tmp_path, config=config)
    edit_config(tmp_path, hidden_act="tanh")
    inputs = inputs_for(config)
    np.testing.assert_array_equal(
        by_hand(**inputs).last_hidden_state, BertModel.from_pretrained(tmp_path)(**inputs).last_hidden_state
    )
    assert by_hand.config is config


def test_a_config_of_another_library_is_refused(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, **SMALL)
    with pytest.raises(TypeError, match=r"config is a dict; expected a minibert\.BertConfig"):
        BertModel.from_pretrained(tmp_path, config={})  # type: ignore[arg-type]


# --- features that are not implemented --------------------------------------------------------------------------------

OTHER_MODEL_TYPES = (
    *("mpnet", "distilbert", "roberta", "xlm-roberta", "albert", "electra"),
    *("deberta-v2", "modernbert", "nomic_bert", "new", "t5", "gpt2"),
)


@pytest.mark.parametrize("model_type", OTHER_MODEL_TYPES)
def test_another_model_type_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    random_checkpoint(tmp_path, **SMALL)
    edit_config(tmp_path, model_type=model_type)
    with pytest.raises(ModelFormatError, match=rf"config\.json: model_type='{model_type}' is not BERT"):
        BertModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("position_embedding_type", "relative_key"),
        ("position_embedding_type", "relative_key_query"),
        ("position_embedding_type", "rotary"),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"load_in_8bit": True}),
        ("hidden_act", "gelu_10"),
        ("hidden_act", "quick_gelu"),
        ("hidden_act", "mish"),
        ("hidden_act", "GELU"),
        ("hidden_act", ""),
        ("hidden_act", None),
        ("hidden_act", ["gelu"]),
        ("model_type", None),
        ("model_type", ["bert"]),
        ("model_type", "BERT"),
    ],
)
def test_features_that_are_not_implemented_are_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    random_checkpoint(tmp_path, **SMALL)
    edit_config(tmp_path, **{field: value})
    with pytest.raises(ModelFormatError, match=rf"config\.json: {field}=.*not (implemented|BERT)") as caught:
        BertModel.from_pretrained(tmp_path)
    assert repr(value) in str(caught.value), "the message must name the value"


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


def without_field(name: str) -> bytes:
    return json.dumps({n: v for n, v in GOOD.items() if n != name}).encode()


WRONG_SIZES = {
    "a string": ('"24"', "{name}='24'; expected an int"),
    "a boolean": ("true", "{name}=True; expected an int"),
    "a float": ("12.0", "{name}=12.0; expected an int"),
    "null": ("null", "{name}=None; expected an int"),
    "an array": ("[24]", r"{name}=\[24\]; expected an int"),
    "an object": ('{"a": 1}', "{name}=.*; expected an int"),
    "negative": ("-24", "{name}=-24; expected an int"),
    "huge": (str(10**12), "{name}=1000000000000; expected an int"),
    "4000 digits": ("1" + 4000 * "0", "{name}=<an integer of 13288 bits>; expected an int"),
    "4000 digits, negative": ("-1" + 4000 * "0", "{name}=<an integer of 13288 bits>; expected an int"),
    "5000 digits": ("1" + 5000 * "0", "digits"),
    "NaN": ("NaN", "NaN is not a JSON number"),
    "Infinity": ("Infinity", "Infinity is not a JSON number"),
    "a number too large for a float": ("1e999", "1e999 is too large"),
}

UNUSABLE: list[tuple[str, bytes, str]] = [
    *(
        (f"{name}: {what}", with_field(name, literal), match.format(name=name))
        for name in (*SIZES, "type_vocab_size")
        for what, (literal, match) in WRONG_SIZES.items()
    ),
    *((f"{name}: zero", with_field(name, "0"), f"{name}=0; expected") for name in SIZES if name != "num_hidden_layers"),
    ("type_vocab_size: zero", with_field("type_vocab_size", "0"), "type_vocab_size=0; expected"),
    *((f"{name}: absent", without_field(name), f"{name}.*absent") for name in SIZES),
    ("pad_token_id: a string", b'{"pad_token_id": "0", ' + with_field("", "")[1:], "pad_token_id='0'"),
    ("pad_token_id: a boolean", b'{"pad_token_id": false, ' + with_field("", "")[1:], "pad_token_id=False"),
    ("pad_token_id: huge", b'{"pad_token_id": 1000000000000, ' + with_field("", "")[1:], "pad_token_id=1000000000000"),
    *(
        (f"layer_norm_eps: {literal[:9]}", with_field("layer_norm_eps", literal), match)
        for literal, match in (
            *((x, "layer_norm_eps=") for x in ("0", "0.0", "-1e-12", '"1e-12"', "true", "null", "[]")),
            *((x, "number|digits") for x in ("NaN", "Infinity", "-Infinity", "1e999", "1" + 5000 * "0")),
            ("1" + 400 * "0", "layer_norm_eps="),
        )
    ),
    ("heads that do not divide", with_field("num_attention_heads", "5"), "hidden_size=24 .* num_attention_heads=5"),
    ("more heads than features", with_field("num_attention_heads", "48"), "num_attention_heads=48"),
    ("a key twice", b'{"hidden_size": 12, ' + with_field("", "")[1:], "'hidden_size' occurs twice"),
    ("a key twice, equal", b'{"vocab_size": 40, ' + with_field("", "")[1:], "'vocab_size' occurs twice"),
    ("deep arrays", b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b", " + with_field("", "")[1:], "nested too deeply"),
    ("deep objects", 100_000 * b'{"a":' + b"1" + 100_000 * b"}", "nested too deeply"),
    ("UTF-16", with_field("", "").decode().encode("utf-16"), "not UTF-8"),
    ("Latin-1", with_field("hidden_act", '"gel\xfc"').decode().encode("latin-1"), "not UTF-8"),
    ("empty", b"", "it is empty"),
    ("white space", b" \n\t ", "it is empty"),
    ("cut short", with_field("", "")[:-20], "not valid JSON"),
    ("something after the end", with_field("", "") + b"}", "not valid JSON"),
    ("single quotes", with_field("", "").replace(b'"', b"'"), "not valid JSON"),
    ("a comment", b"// BERT\n" + with_field("", ""), "not valid JSON"),
    ("an array", b"[" + with_field("", "") + b"]", "array, expected an object"),
    ("a string", b'"bert"', "string, expected an object"),
    ("a number", b"12", "number, expected an object"),
    ("null", b"null", "null, expected an object"),
    ("an empty object", b"{}", "absent"),
    ("thousands of other fields", json.dumps({f"field {i}": i for i in range(10_000)}).encode(), "absent"),
    ("a long hidden_act", with_field("hidden_act", json.dumps(100_000 * "gelu")), "hidden_act=.* is not implemented"),
    ("a long model_type", with_field("model_type", json.dumps(100_000 * "bert")), "model_type=.* is not BERT"),
    ("a long size", with_field("vocab_size", json.dumps(100_000 * "4")), "vocab_size=.*; expected an int"),
    ("zeros", 1000 * b"\0", "not valid JSON"),
    ("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 600\n", "git lfs pull"),
    ("a web page", b"<!DOCTYPE html><html><title>Sign in</title></html>", "not valid JSON"),
]


@pytest.mark.parametrize(("content", "match"), [case[1:] for case in UNUSABLE], ids=[case[0] for case in UNUSABLE])
def test_an_unusable_config_is_an_error_that_names_file_and_field(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    files = locate(tmp_path)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(ModelFormatError, match=match) as caught:
            BertConfig.from_files(files)
        seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000, "the message is too long to read"
    assert peak < 50e6
    assert seconds < 5, "the time must not depend on the refused value"


def test_a_file_of_100_megabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.write(with_field("", "")[:-1])
        file.truncate(100_000_000)
    files = locate(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match=r"config\.json is larger than"):
            BertConfig.from_files(files)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + with_field("", ""))
    assert BertConfig.from_pretrained(tmp_path) == BertConfig(**SMALL)


def test_a_missing_config_is_an_error_that_lists_the_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFormatError, match=r"has no config\.json.*It has: model\.safetensors"):
        BertConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"vocab_size": 10**5000},
        {"hidden_size": -(10**5000)},
        {"layer_norm_eps": 10**400},
        {"layer_norm_eps": 10**5000},
        {"layer_norm_eps": float("nan")},
        {"hidden_size": np.int64(24)},
        {"num_hidden_layers": True},
    ],
)
def test_values_given_in_python_are_checked_too(values: dict[str, Any]) -> None:
    with pytest.raises(ModelFormatError, match=next(iter(values))):
        BertConfig(**{**SMALL, **values})


def test_count_of_unusable_configs_is_reported() -> None:
    assert len(UNUSABLE) >= 60
    REPORT.append(f"config.json: {len(UNUSABLE) + 1} unusable files, each with a ModelFormatError")


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
