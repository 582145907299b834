"""The names: the table is executed, each value equals that of transformers' module, aliases and patterns."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert import BertModel, exact
from minibert.models.stored import named_arrays
from minibert.trace.layout import Layout
from minibert.trace.names import Names
from minibert.trace.trace import Trace
from tests.support import definition as float64
from tests.support.definition import measure
from tests.support.head_models import CLASSES, inputs_of, make_model
from tests.support.random_checkpoints import VOCABULARY, random_checkpoint, sizes
from tests.support.report import REPORT
from tests.support.text_data import english_texts
from tests.support.torch_hooks import run_hooked, shown

# All dimensions differ.
ODD: dict[str, Any] = sizes(V=len(VOCABULARY), H=35, L=3, A=5, F=131, P=41, types=6)


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("odd") / "model", **ODD)


def padded_inputs(model: BertModel, rows: int = 6, length: int = 13) -> dict[str, np.ndarray]:
    config = model.config
    return inputs_of(
        "BertModel", rows=rows, length=length, vocab_size=config.vocab_size, type_vocab_size=config.type_vocab_size
    )


# --- the table --------------------------------------------------------------------------------------------------------


class Formulas:
    """Evaluates the formulas of the table for one sequence, in float64, with the arrays of the checkpoint."""

    def __init__(self, model: Any, ids: np.ndarray, types: np.ndarray, positions: np.ndarray) -> None:
        config = model.config
        A, D = config.num_attention_heads, config.head_size
        self.arrays = {
            name.removeprefix("bert."): np.asarray(array, dtype=np.float64)
            for name, array in named_arrays(model.weights, model.head_name)
        }
        self.eps = config.layer_norm_eps
        self.values: dict[str, np.ndarray] = {}
        self.given: dict[str, Any] = {
            "input_ids": ids,
            "token_type_ids": types,
            "position_ids": positions,
            "sqrt": np.sqrt,
            "tanh": np.tanh,
            "D": D,
            "act": float64.ACTIVATIONS[config.activation],
            "by_head": lambda x: x.reshape(len(x), A, D).transpose(1, 0, 2),
            "transposed": lambda x: x.transpose(0, 2, 1),
            "joined": lambda x: x.transpose(1, 0, 2).reshape(x.shape[1], A * D),
            "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
        }

    def evaluate(self, entry: Any, layer: int | None) -> np.ndarray:
        module = entry.module.format(i=layer)
        W, b = self.arrays.get(f"{module}.weight"), self.arrays.get(f"{module}.bias")
        if module == "cls.predictions.decoder":
            W, b = self.arrays["embeddings.word_embeddings.weight"], self.arrays["cls.predictions.bias"]

        def layer_norm(x: np.ndarray) -> np.ndarray:
            return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.eps) * W + b

        needed = {symbol: self.values[symbol] for symbol in entry.needs}  # and no other one
        value = eval(entry.formula, {"W": W, "b": b, "layer_norm": layer_norm, **self.given, **needed})
        self.values[entry.symbol] = value
        if entry.symbol in ("embeddings", "output"):
            self.values["x"] = value
        return value


@pytest.mark.parametrize("kind", ["BertModel", *CLASSES])
def test_each_formula_and_shape_of_the_table_is_true(kind: str, odd_folder: Path, tmp_path: Path) -> None:
    if kind == "BertModel":
        model: Any = BertModel.from_pretrained(odd_folder)
    else:
        labels = {"num_labels": 7} if "Classification" in kind else {}
        folder = make_model(tmp_path / "model", kind, **{**ODD, "vocab_size": 53, **labels})
        model = getattr(minibert, kind).from_pretrained(folder)
    generator = np.random.default_rng(0)
    shape = (2, 11) if kind != "BertForMultipleChoice" else (2, 1, 11)
    ids, types = generator.integers(53, size=shape), generator.integers(6, size=shape)
    trace = exact.forward(model, ids, token_type_ids=types)
    config = model.config
    letters = {
        "B": 2,
        "S": 11,
        "H": config.hidden_size,
        "E": config.embedding_size or config.hidden_size,
        "A": config.num_attention_heads,
        "F": config.intermediate_size,
        "V": config.vocab_size,
        "N": 7,
    }
    entries = [*Layout.of(trace.sizes).rows()]
    assert [entry.path.format(i=i) for i, entry in entries] == list(trace)
    for b in range(2):
        formulas = Formulas(model, ids.reshape(2, 11)[b], types.reshape(2, 11)[b], np.arange(11))
        for layer, entry in entries:
            name = entry.path.format(i=layer)
            value, result = formulas.evaluate(entry, layer), trace[name]
            said = [letters[part] if part in letters else int(part) for part in entry.shape.strip("()").split(", ")]
            assert list(result.shape) == said, name
            np.testing.assert_allclose(value, result[b], rtol=0, atol=1e-10 * max(1, np.abs(value).max()), err_msg=name)


# --- beside transformers ----------------------------------------------------------------------------------------------


def compare(
    trace: Trace, true: Trace, theirs: dict[str, np.ndarray], mask: np.ndarray
) -> list[tuple[str, float, float]]:
    """Return the RMS errors of ours and theirs for each name, relative to the RMS of the value."""
    rows = []
    for name, shape in trace.shapes.items():
        exactly = shown(shape, true[name], mask)
        size = float64.rms(exactly) or 1.0
        ours, others = (measure(shown(shape, array, mask), exactly).rms for array in (trace[name], theirs[name]))
        rows.append((name, ours / size, others / size))
    return rows


def their_names(values: dict[str, np.ndarray], names: Names) -> dict[str, np.ndarray]:
    """Return the values of hooks under the names of the table; all hooks on one value must agree."""
    result: dict[str, np.ndarray] = {}
    for path, value in values.items():
        name, _ = names.resolve(path)
        if name in result:
            np.testing.assert_array_equal(result[name], value, err_msg=path)
        result[name] = value
    return result


def check_errors(subject: str, rows: list[tuple[str, float, float]]) -> None:
    """Compare the errors of each kind of name, over all layers, and each alone with a factor for chance."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for name, ours, others in rows:
        kinds.setdefault(re.sub(r"layer\.\d+", "layer.*", name), []).append((ours, others))
    squares = {kind: np.sqrt(np.mean(np.square(errors), axis=0)) for kind, errors in kinds.items()}
    assert not [kind for kind, (ours, others) in squares.items() if ours > others]
    ratio, name = max((ours / others, name) for name, ours, others in rows if others)
    REPORT.append(f"trace: {subject}: {len(rows)} names, largest ratio to transformers' error {ratio:.2f} ({name})")
    assert not [row for row in rows if row[1] > 1.5 * row[2] + 1e-12], rows


@pytest.mark.parametrize("kind", ["MiniLM", "odd", pytest.param("12 layers of 768", marks=pytest.mark.slow)])
def test_every_name_is_what_transformers_computes_there(
    kind: str, minilm_folder: Path, odd_folder: Path, tmp_path: Path, tokenizer: Any
) -> None:
    """The hooks are on all modules with eager attention; the error of each is compared with float64."""
    from transformers import BertModel as Theirs

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072}
    folder = {"MiniLM": minilm_folder, "odd": odd_folder}.get(kind)
    folder = folder or random_checkpoint(tmp_path / "model", **sizes, initializer_range=0.05)
    model = BertModel.from_pretrained(folder)
    inputs = padded_inputs(model, rows=6 if "768" in kind else 40, length=29)
    if kind == "MiniLM":
        cut, texts = {"truncation": True, "max_length": 100}, english_texts()[:24]
        inputs = dict(tokenizer(texts[:-1:2], texts[1::2], padding=True, **cut, return_tensors="np"))
    theirs = Theirs.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    trace, true = model.trace(**inputs), exact.forward(model, **inputs)
    values, output = run_hooked(theirs, inputs)
    result = their_names(values, trace._names)
    assert set(result) == set(trace)
    assert len(trace) == {"MiniLM": 91, "odd": 49}.get(kind, 175)
    np.testing.assert_array_equal(output.pooler_output.numpy(), result["pooler"])
    check_errors(kind, compare(trace, true, result, inputs["attention_mask"]))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize("kind", ["BertModel", "BertForPreTraining"])
def test_exact_equals_the_float64_definitions(kind: str, activation: str, odd_folder: Path, folder_of: Any) -> None:
    """tests/support/definition.py is independent of exact.py: other formulas, other sums, scipy's erf."""
    folder = odd_folder if kind == "BertModel" else folder_of(kind)
    config = dataclasses.replace(minibert.BertConfig.from_pretrained(folder), hidden_act=activation)
    model = getattr(minibert, kind).from_pretrained(folder, config=config)
    inputs = padded_inputs(model)
    true, result = model.with_ops(float64.OPS).trace(**inputs), exact.forward(model, **inputs)
    for name, array in true.items():
        assert result[name].dtype == np.float64
        scale = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(result[name], array, rtol=0, atol=1e-11 * scale, err_msg=name)
    for value in result.output.values():
        assert all(array.dtype == np.float64 for array in (value if isinstance(value, tuple) else (value,)))


# --- aliases and patterns ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_trace(odd_folder: Path) -> Trace:
    model = BertModel.from_pretrained(odd_folder, output_attentions=True)
    return model.trace(**padded_inputs(model))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("blocks.1.hook_resid_pre", "encoder.layer.0"),
        ("blocks.0.ln2.hook_in", "encoder.layer.0.output.LayerNorm.input"),
        ("Qcur-1", "encoder.layer.1.attention.self.query"),
        ("result_embd", "encoder.layer.2"),
        ("/encoder/layer.1/attention/self/value/Add_output_0", "encoder.layer.1.attention.self.value"),
        ("/bert/encoder/layer.1/attention/output/Add_output_0", "encoder.layer.1.attention.output.LayerNorm.input"),
        ("/0/auto_model/pooler/dense/Gemm_output_0", "pooler.dense"),
        ("0.auto_model.encoder.layer.1.output.LayerNorm", "encoder.layer.1"),
        ("encoder.layer.0.attention.self.key.input", "embeddings"),
        ("pooler.input", "encoder.layer.2"),
    ],
)
def test_an_alias_is_its_name(alias: str, name: str, odd_trace: Trace) -> None:
    np.testing.assert_array_equal(odd_trace[alias], odd_trace[name])
    assert alias in odd_trace
    assert alias not in list(odd_trace)


def test_aliases_by_head_have_an_axis_of_heads(odd_trace: Trace) -> None:
    name = "encoder.layer.1.attention.self"
    by_head = odd_trace["blocks.1.attn.hook_z"]
    assert by_head.shape == (6, 13, 5, 7)
    np.testing.assert_array_equal(by_head[..., 2, :], odd_trace[name][..., 14:21])


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ("encoder.layer.*.attention", [f"encoder.layer.{i}.attention" for i in range(3)]),
        ("*.probs", [f"encoder.layer.{i}.attention.self.probs" for i in range(3)]),
        ("hidden_states.*", ["embeddings", *(f"encoder.layer.{i}" for i in range(3))]),
        ("encoder.layer.[12].output", ["encoder.layer.1", "encoder.layer.2"]),
        ("encoder.layer.?.output.dense", [f"encoder.layer.{i}.output.dense" for i in range(3)]),
        (["pooler", "attentions.1", "pooler_output"], ["encoder.layer.1.attention.self.probs", "pooler"]),
        (lambda name: name.endswith("query"), [f"encoder.layer.{i}.attention.self.query" for i in range(3)]),
        ("bert.pooler", ["pooler"]),
        ((), []),
    ],
)
def test_patterns(record: Any, names: list[str], odd_trace: Trace, odd_folder: Path) -> None:
    assert odd_trace._names.select(record) == names
    assert list(BertModel.from_pretrained(odd_folder).trace([[1, 2, 3]], record=record)) == names


def test_a_layer_does_not_contain_its_input(odd_trace: Trace) -> None:
    """The input of layer 1 is the output of layer 0, so an edit of "encoder.layer.1.*" must not change it."""
    assert set(odd_trace._names.match("encoder.layer.1.*")) == {
        name for name in odd_trace if name.startswith("encoder.layer.1.") or name == "encoder.layer.1"
    }


@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        ("encoder.layer.3.output", ValueError, "encoder.layer.2.output"),
        ("encoder.layer.1.attention.probs", ValueError, "encoder.layer.1.attention.self.probs"),
        ("attn*", ValueError, r"'attn\*'"),
        ("classifier", ValueError, "no head"),
        (["pooler", "no such name"], ValueError, "'no such name'"),
        ("blocks.1.hook_resid_post", ValueError, r"\S+.output.LayerNorm.input in HookedEncoder.* encoder.layer.1 in"),
        ("bert.blocks.0.hook_resid_mid", ValueError, "two meanings"),
        ("blocks.[01].attn.hook_attn_scores", ValueError, r"encoder.layer.\[01\].attention.self.scores"),
        *((wrong, TypeError, "record=") for wrong in (3, [3], b"pooler", {"pooler": 1})),
    ],
)
def test_names_that_are_refused(record: Any, error: type[Exception], words: str, odd_folder: Path) -> None:
    with pytest.raises(error, match=words):
        BertModel.from_pretrained(odd_folder).trace([[1, 2, 3]], record=record)


def test_names_beyond_num_layers(odd_folder: Path) -> None:
    model = BertModel.from_pretrained(odd_folder)
    trace = model.trace([[1, 2, 3]], num_layers=1)
    assert list(trace)[-1] == "encoder.layer.0"
    assert len(trace) == 19
    assert trace.output.last_hidden_state is None
    for record in ("encoder.layer.1.*", "pooler", "last_hidden_state"):
        with pytest.raises(ValueError, match="is not computed with num_layers=1"):
            model.trace([[1, 2, 3]], num_layers=1, record=record)


def test_lookups_in_a_trace(odd_trace: Trace) -> None:
    np.testing.assert_array_equal(odd_trace[2, "probs"], odd_trace["encoder.layer.2.attention.self.probs"])
    np.testing.assert_array_equal(odd_trace[0, "attention.self.key"], odd_trace["Kcur-0"])
    for key in ("encoder.layer.7", "no", 3, (9, "probs"), (1, "probz")):
        assert key not in odd_trace
        with pytest.raises(KeyError):
            odd_trace[key]  # type: ignore[index]
