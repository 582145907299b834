"""Edits: each compared with the same change by a hook on transformers; edits that are refused; bits that stay."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minibert
from minibert import BertModel, Edit, head_mask
from minibert.trace.edits import EditValue
from minibert.trace.trace import Trace
from tests.support.head_models import CLASSES, inputs_of, their_model
from tests.support.random_checkpoints import random_checkpoint
from tests.support.torch_hooks import run_hooked, shown

A, D, H, F, L = 5, 7, 35, 131, 3
B, S = 4, 11
SELF = "encoder.layer.1.attention.self"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": H, "num_attention_heads": A, "intermediate_size": F, "num_hidden_layers": L}
    return random_checkpoint(tmp_path_factory.mktemp("odd") / "model", **sizes, type_vocab_size=3)


@pytest.fixture(scope="module")
def model(folder: Path) -> BertModel:
    return BertModel.from_pretrained(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """In float64, so that the differences are the errors of float32 in minibert alone."""
    from transformers import BertModel as Theirs

    return Theirs.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()


RANDOM = np.random.default_rng(0)
MASK = np.ones((B, S), dtype=np.int64)
MASK[1, 6:], MASK[2, :3], MASK[3, [2, 5]] = 0, 0, 0
INPUTS = {"input_ids": RANDOM.integers(90, size=(B, S)), "attention_mask": MASK}
INPUTS["token_type_ids"] = RANDOM.integers(3, size=(B, S))
SHOWN = torch.as_tensor(MASK)[..., None].bool()
KEYS = torch.as_tensor(MASK)[:, None, None]
VECTOR = RANDOM.standard_normal(H)
WIDE = RANDOM.standard_normal(F)
STATES = RANDOM.standard_normal((B, S, H))
MATRIX = RANDOM.standard_normal((1, S, S)) ** 2
HEADS = RANDOM.random(A)
SOME = RANDOM.random((B, S)) < 0.5
CAUSAL = np.where(np.tril(np.ones((S, S), bool)), 0, -np.inf)


def tensor(array: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(array, dtype=np.float64))


def at(index: Any, change: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change of a part of a padded value."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        x = x.expand(B, *x.shape[1:]).clone() if x.shape[0] == 1 else x.clone()
        x[index] = change(x[index])
        return x

    return changed


def mean_of_tokens(x: torch.Tensor) -> torch.Tensor:
    return (x * SHOWN).sum(1, keepdim=True) / SHOWN.sum(1, keepdim=True) + 0 * x


def mean_of_queries(x: torch.Tensor) -> torch.Tensor:
    rows = SHOWN[:, None]
    return (x * rows).sum(2, keepdim=True) / rows.sum(2, keepdim=True) + 0 * x


ALL = slice(None)


LAYER = "encoder.layer.1"
EDITS: dict[str, tuple[str, Any, Callable[[torch.Tensor], Any]]] = {
    "key": (f"{SELF}.key", Edit.add(VECTOR, tokens=3), at((ALL, 3), lambda x: x + tensor(VECTOR))),
    "value": (f"{SELF}.value", Edit.mean(), mean_of_tokens),
    "positions": ("embeddings.position_embeddings", Edit.replace(STATES[:1]), lambda x: tensor(STATES[:1]) + 0 * x),
    "layer": (LAYER, Edit.replace(STATES), lambda x: tensor(STATES)),
    "pooler": ("pooler", Edit.scale(3, sequences=[0, 3]), at([0, 3], lambda x: x * 3)),
    # parts; test_any_edit_is_right_or_refused has all others
    "nobody looks at token 4": (
        f"{SELF}.scores",
        Edit.add(-np.inf, keys=4, tokens=[0, 3, 9]),
        at((ALL, ALL, [0, 3, 9], 4), lambda x: x - np.inf),
    ),
    "a function of tokens in another order": (
        f"{LAYER}.output",
        Edit.function(lambda x: x * np.arange(1, len(x) + 1)[:, None], tokens=[9, 4], sequences=0),
        at(([0, 0], [9, 4]), lambda x: x * tensor([[1], [2]])),
    ),
    # kinds
    "a causal mask": (f"{SELF}.scores", Edit.add(CAUSAL[None, None]), lambda x: x + tensor(CAUSAL)),
    "mean of the probs over tokens": (f"{SELF}.probs", Edit.mean("tokens"), mean_of_queries),
    "mean of the probs over heads": (f"{SELF}.probs", Edit.mean("heads"), lambda x: x.mean(1, True).expand_as(x)),
    "mean over features": (f"{LAYER}.output", Edit.mean("features"), lambda x: x.mean(-1, True).expand_as(x)),
    "an array instead of the probs": (f"{SELF}.probs", MATRIX[None], lambda x: tensor(MATRIX) * KEYS + 0 * x),
    "a number": (f"{SELF}.value", 0.5, lambda x: 0 * x + 0.5),
    "a function": (f"{LAYER}.attention", lambda x: np.tanh(x), torch.tanh),
    "a function of the site": (
        LAYER,
        lambda x, site: x * (1 + site.columns[:, None] / 50) * (1 + site.sequence / 9),
        lambda x: x * (1 + torch.arange(S)[:, None] / 50) * (1 + torch.arange(B)[:, None, None] / 9),
    ),
    "two after each other": (
        "embeddings",
        Edit.scale(2) | Edit.add(1, tokens=[2]),
        lambda x: at((ALL, 2), lambda y: y + 1)(x * 2),
    ),
    "by the name of TransformerLens": (
        "blocks.1.ln2.hook_in",
        Edit.scale(0.9, tokens=1),
        at((ALL, 1), lambda x: x * 0.9),
    ),
}


def check_edit(trace: Trace, values: dict[str, Any], mask: np.ndarray) -> None:
    """Compare all values after an edit, also those of the site itself, with those of transformers in float64."""
    for name, shape in trace.shapes.items():
        expected, value = shown(shape, values[name], mask), shown(shape, trace[name], mask)
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
        np.testing.assert_allclose(value, expected, rtol=0, atol=5e-6 * scale, err_msg=name)  # at most 1.6e-6
    (report,) = trace.edits
    assert report.fired
    assert report.changed


@pytest.mark.parametrize(("name", "edit", "change"), EDITS.values(), ids=EDITS)
def test_an_edit_is_the_change_of_a_hook(
    name: str, edit: Any, change: Callable[[torch.Tensor], Any], model: BertModel, theirs: Any
) -> None:
    trace = model.trace(**INPUTS, edit={name: edit})
    values, _ = run_hooked(theirs, INPUTS, {trace.edits[0].names[0]: change})
    check_edit(trace, values, MASK)


def test_each_name_can_be_edited(model: BertModel, theirs: Any) -> None:
    for name in model.trace(**INPUTS):
        values, _ = run_hooked(theirs, INPUTS, {name: lambda x: x * 0.5})
        check_edit(model.trace(**INPUTS, edit={name: Edit.scale(0.5)}), values, MASK)


@pytest.mark.parametrize("kind", CLASSES)
def test_each_name_of_a_head_can_be_edited(kind: str, folder_of: Any) -> None:
    folder = folder_of(kind)
    ours, inputs = getattr(minibert, kind).from_pretrained(folder), inputs_of(kind, rows=6)
    theirs = their_model(folder, kind, "eager").double()
    mask = inputs["attention_mask"].reshape(-1, inputs["attention_mask"].shape[-1])
    sites = ("cls.", "classifier", "qa_outputs", "pooler")
    names = [name for name in ours.trace(**inputs, record="*") if name.startswith(sites) and name != "pooler.dense"]
    assert names
    for name in names:
        values, _ = run_hooked(theirs, inputs, {name: lambda x: x * 0.5})
        check_edit(ours.trace(**inputs, edit={name: Edit.scale(0.5)}), values, mask)


# --- head masks -------------------------------------------------------------------------------------------------------


def test_a_head_mask_is_that_of_older_transformers(model: BertModel, theirs: Any) -> None:
    mask = np.ones((L, A))
    mask[0, 2], mask[2, [0, 4]], mask[2, 1] = 0, 0, 0.5
    edit = head_mask(mask)
    assert list(edit) == [f"encoder.layer.{i}.attention.self.probs" for i in (0, 2)]
    factors = {name: tensor(mask[i])[:, None, None] for name, i in zip(edit, (0, 2), strict=True)}
    values, _ = run_hooked(theirs, INPUTS, {name: partial(torch.mul, factor) for name, factor in factors.items()})
    trace = model.trace(**INPUTS, edit=edit)
    np.testing.assert_allclose(trace["hidden_states.3"][MASK == 1], values["encoder.layer.2"][MASK == 1], atol=1e-5)
    assert head_mask(np.ones((L, A))) == {}
    assert list(head_mask(mask[2])) == ["encoder.layer.*.attention.self.probs"]
    with pytest.raises(ValueError, match="probs"):
        model.trace(**INPUTS, edit=head_mask(np.zeros((1, 1, 5))))


# --- patches ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean(model: BertModel) -> Trace:
    return model.trace(**INPUTS)


OTHER = {**INPUTS, "input_ids": RANDOM.integers(90, size=(B, S))}


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_patching_everything_from_the_clean_run_gives_the_clean_bits(backend: str, folder: Path) -> None:
    model = BertModel.from_pretrained(folder, backend=backend)
    clean = model.trace(**INPUTS)
    for edit in ({"*": Edit.patch(clean)}, {"*": clean}, dict.fromkeys(clean, clean)):
        patched = model.trace(**OTHER, edit=edit, allow_noop=True)
        assert sum(report.changed for report in patched.edits)
        for name in clean:
            np.testing.assert_array_equal(patched[name], clean[name], err_msg=name)
        np.testing.assert_array_equal(patched.output.last_hidden_state, clean.output.last_hidden_state)


# --- bits that stay ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_an_edit_that_changes_nothing_changes_no_bit(backend: str, folder: Path) -> None:
    model = BertModel.from_pretrained(folder, backend=backend)
    clean = model.trace(**INPUTS)
    same = model.trace(**INPUTS, edit={"*": lambda x: x}, allow_noop=True)
    assert same.edits[0].changed == 0
    assert same.edits[0].fired == len(clean) * B - 2  # one sequence does not show [CLS]
    for name in clean:
        np.testing.assert_array_equal(same[name], clean[name], err_msg=name)
    np.testing.assert_array_equal(same.output.pooler_output, clean.output.pooler_output)


@pytest.mark.parametrize("name", ["scores", "probs", "query", "value"])
def test_what_does_not_depend_on_a_change_keeps_its_bits(name: str, model: BertModel, clean: Trace) -> None:
    """A change of one head and one token of one sequence leaves the other sequences, heads and tokens as they were."""
    trace = model.trace(**INPUTS, edit={f"{SELF}.{name}": Edit.scale(0.5, heads=2, tokens=3, sequences=0)})
    changed = trace[SELF] != clean[SELF]
    assert not changed[1:].any()
    assert changed[0, 3, 2 * D : 3 * D].any()
    assert not changed[0, :, : 2 * D].any()
    assert not changed[0, :, 3 * D :].any()
    if name != "value":
        assert not changed[0, [0, 1, 2, *range(4, S)]].any()


def test_a_text_has_the_same_bits_in_any_batch(model: BertModel) -> None:
    edit: dict[str, EditValue] = {
        "*.scores": Edit.scale(0.9),
        "*.intermediate.dense": lambda x: x * 0.9,
        "embeddings": Edit.mean("tokens"),
        "encoder.layer.1": np.tanh,
    }
    whole = model.trace(**INPUTS, edit=edit)
    for b in range(B):
        alone = model.trace(**{name: array[b : b + 1] for name, array in INPUTS.items()}, edit=edit)
        for name in whole:
            np.testing.assert_array_equal(alone[name][0], whole[name][b], err_msg=name)


def test_reports(model: BertModel, clean: Trace) -> None:
    report = model.trace(**INPUTS, edit={SELF: Edit.zero(heads=3)}).edits[0]
    shown_ = clean[SELF][MASK == 1]
    assert (report.pattern, report.names, report.fired) == (SELF, (SELF,), B)
    assert report.changed == MASK.sum() * D
    assert report.description == "zero(heads=[3])"
    np.testing.assert_allclose(report.before_rms, np.sqrt((shown_**2).mean()), rtol=1e-6)
    np.testing.assert_allclose(
        report.change_rms, np.sqrt((shown_[:, 3 * D : 4 * D] ** 2).sum() / shown_.size), rtol=1e-6
    )
    masked = model.trace(**INPUTS, edit={"*.scores": Edit.add(-np.inf, keys=0, tokens=range(1, S))}).edits[0]
    assert np.isfinite(masked.change_rms)


def test_a_function_gets_a_copy_and_its_site(model: BertModel) -> None:
    seen = []

    def look(x: np.ndarray, site: Any) -> None:
        seen.append((site.name, site.layer, site.sequence, site.columns.tolist(), x.shape))
        with pytest.raises(ValueError, match="read-only"):
            site.array[:] = 0

    edit: dict[str, EditValue] = {"encoder.layer.1.attention": look, "pooler": look}
    trace = model.trace(**INPUTS, edit=edit, allow_noop=True)
    np.testing.assert_array_equal(trace["pooler"], model(**INPUTS).pooler_output)
    columns = [np.flatnonzero(row).tolist() for row in MASK]
    assert seen[:B] == [("encoder.layer.1.attention", 1, b, columns[b], (len(columns[b]), H)) for b in range(B)]
    assert [entry[2] for entry in seen[B:]] == [0, 1, 3]


# --- any edit ---------------------------------------------------------------------------------------------------------

INDICES = st.one_of(
    st.integers(0, 4),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(-13, 13),
    st.sampled_from([range(2), np.arange(3, dtype=np.uint8), SOME, SOME[:2], SOME[0], True, 1.5, "1", b"", 10**30, []]),
    st.sampled_from([np.nan, [[0], [1]], [[0], [1, 2]], [None], {2, 0}, np.array([1.0]), object(), -(2**63), {}]),
)
SHAPES = st.lists(st.sampled_from([0, 1, 2, A, D, H, B, S]), max_size=4)
NUMBERS = st.one_of(
    st.floats(-9, 9, width=32),
    SHAPES.map(lambda shape: np.arange(np.prod(shape, dtype=int)).reshape(shape) / 8),
    st.sampled_from([np.inf, -np.inf, np.nan, 1e300, True, 1j, None, "2", [], [[]], [1, [2]], 10**400, VECTOR[:D], {}]),
    st.sampled_from([VECTOR, HEADS, STATES, STATES[:1], MATRIX[None], np.float16([3]), VECTOR.astype(str), object()]),
)
KEYS_OF_EDITS = [SELF, f"{SELF}.query", f"{SELF}.scores", f"{SELF}.probs", "encoder.layer.1", "embeddings", "pooler"]
WHERE = st.dictionaries(st.sampled_from(["heads", "tokens", "keys", "features", "sequences"]), INDICES, max_size=2)


def edited(kind: str, x: np.ndarray, value: Any, where: dict[str, Any]) -> np.ndarray:
    """Return what an edit makes of a padded value, in plain NumPy."""
    pairs, chosen = x.ndim == 4, np.ones(x.shape, bool)
    counted = 1 if pairs else x.ndim - 1
    order = np.arange(x.shape[counted])
    axes = {"sequences": 0, "tokens": 2 if pairs else 1, "keys": 3, "heads": 1 if pairs else 2, "features": x.ndim - 1}
    for name, indices in where.items():
        given = np.array([*indices] if isinstance(indices, set | range) else indices)
        axis = axes[name]
        if given.dtype == bool:
            chosen &= given.reshape([size if i in (0, axis) else 1 for i, size in enumerate(x.shape)])
            continue
        places = given.ravel().astype(int)
        if name == "heads" and not pairs:
            places = (places[:, None] % A * D + np.arange(D)).ravel()
        if axis == counted:
            order = np.array(list(dict.fromkeys((places % x.shape[axis]).tolist())))
        chosen &= np.isin(np.arange(x.shape[axis]), places % x.shape[axis]).reshape(
            [-1 if i == axis else 1 for i in range(x.ndim)]
        )
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.ndim == 1 and len(numbers) == len(order):
        numbers, part = np.zeros(x.shape[counted]), numbers
        numbers[order] = part
    if numbers.ndim == 1 and pairs:
        numbers = numbers[:, None, None]
    return np.where(chosen, {"scale": x * numbers, "add": x + numbers, "replace": numbers + 0 * x}[kind], x)


@pytest.fixture(scope="module")
def others(model: BertModel, clean: Trace, tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """Return traces to patch from: some fit, and some have other masks, sizes, names, or NaN from a file."""
    ids, path = INPUTS["input_ids"], tmp_path_factory.mktemp("nan") / "trace.npz"
    small = BertModel.from_pretrained(random_checkpoint(path.parent / "small", vocab_size=90), backend="numpy")
    clean.save(path)
    with np.load(path) as arrays:
        np.savez(path, **{name: array * np.nan if name == "pooler" else array for name, array in arrays.items()})
    result = [model.trace(**INPUTS, edit={"*.value": Edit.scale(2)}), model.trace(ids[:1]), model.trace(ids)]
    result += [model.trace(ids[:, :5]), model.trace(**INPUTS, num_layers=1), Trace.load(path)]
    return [*result, small.trace(ids % 50, MASK)]


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    key=st.sampled_from(
        KEYS_OF_EDITS * 4 + ["", "no*no", "no", "\udc80", "encoder.layer.9", "[", "pooler\0", "x" * 9999]
    ),
    change=st.one_of(
        st.tuples(st.sampled_from(["scale", "add", "replace"]), NUMBERS), st.tuples(st.just("patch"), st.integers(0, 6))
    ),
    where=WHERE,
)
def test_any_edit_is_right_or_refused(
    key: str, change: tuple[str, Any], where: dict[str, Any], model: BertModel, clean: Trace, others: list[Trace]
) -> None:
    """The error is one of minibert's and names the argument; else the numbers are those of plain NumPy."""
    (kind, value), refused = change, None
    try:
        with np.errstate(all="ignore"):
            edit = Edit.patch(others[value], **where) if kind == "patch" else getattr(Edit, kind)(value, **where)
            trace = model.trace(**INPUTS, edit={key: edit}, allow_noop=True)
    except (TypeError, ValueError) as error:
        refused = error
    if refused is not None:
        place = traceback.extract_tb(refused.__traceback__)[-1].filename
        assert "minibert/trace" in place or "minibert/_utils" in place, refused
        assert any(word in str(refused) for word in (key, "value", "factor", *where)), refused
        return
    before = clean[key].astype(np.float64)
    seen = {2: MASK[:, :1], 3: MASK[:, :, None], 4: MASK[:, None, :, None] * MASK[:, None, None]}[before.ndim]
    kind, value = ("replace", others[value][key]) if kind == "patch" else (kind, value)
    expected = np.where(seen, edited(kind, before, value, where), 0)
    np.testing.assert_allclose(trace[key], expected, rtol=1e-6, atol=1e-7)


# --- edits that are refused -------------------------------------------------------------------------------------------


WRONG: list[tuple[Any, type[Exception], str]] = [
    ({"layer*.probs": Edit.zero()}, ValueError, r"layer\*.probs"),
    ({"blocks.0.attn.hook_q": Edit.zero()}, ValueError, "hook_q has another shape"),
    ([("pooler", Edit.zero())], TypeError, "edit="),
    ({3: Edit.zero()}, TypeError, "edit holds the name 3"),
    ({"pooler": Edit.zero}, TypeError, "Edit.zero"),
    ({"pooler": Edit.add([1, 2], features=[3, 3])}, ValueError, "array"),
    ({"*.probs": Edit.scale([1, 2], heads=[2, 1, 0])}, ValueError, "array"),
    ({"*.scores": Edit.add(-np.inf)}, ValueError, "all scores of one token"),
    ({SELF: Edit.zero(heads=0, features=0)}, ValueError, "heads and features"),
    ({"pooler": Edit.mean("tokens")}, ValueError, "over="),
    ({"pooler": lambda x: x[:3]}, ValueError, r"function of pooler.*shape \(3,\)"),
    ({"pooler": lambda x: "a"}, ValueError, "function of pooler"),
    ({"pooler": lambda x: x.astype(float) * 1e300}, ValueError, "NaN or infinity in pooler"),
    ({"pooler": lambda x: x.fill(0)}, ValueError, "returned None"),
    ({"pooler": lambda x: None}, ValueError, "reached no value"),
    ({"pooler": lambda x: x}, ValueError, "changed nothing"),
    ({SELF: Edit.zero(tokens=0, sequences=2)}, ValueError, "reached no value"),
]


@pytest.mark.parametrize(("edit", "error", "word"), WRONG)
def test_a_wrong_edit_is_refused(edit: Any, error: type[Exception], word: str, model: BertModel) -> None:
    with np.errstate(all="ignore"), pytest.raises(error, match=word):
        model.trace(**INPUTS, edit=edit)


def test_an_edit_that_cannot_be_made() -> None:
    for make, error, word in (
        (lambda: Edit.zero(head=1), TypeError, "head"),
        (lambda: Edit.zero(tokens=MASK.astype(int)), TypeError, "or a bool array"),
        (lambda: Edit.zero(tokens=np.argwhere(MASK)), TypeError, "or a bool array"),
        (lambda: Edit.mean("axis"), ValueError, "over="),
        (lambda: Edit.patch(np.zeros(3)), TypeError, "Trace"),  # type: ignore[arg-type]
        (lambda: Edit.function(3), TypeError, "function"),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=word):
            make()


def test_numbers_that_become_too_large_are_refused(model: BertModel) -> None:
    """The changed value fits into float32, and what is computed from it does not."""
    edit: dict[str, EditValue] = {"encoder.layer.0": Edit.scale(1e30)}
    for run in (model.trace, partial(model.trace, record=()), lambda **call: list(model.stream(**call))):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"encoder\.layer\.0|float32"):
            run(**INPUTS, edit=edit)
    masked = model.trace(**INPUTS, edit={"*.scores": Edit.add(CAUSAL[None, None], sequences=0)}, record="*.scores")
    assert np.isneginf(masked[SELF + ".scores"]).any()
