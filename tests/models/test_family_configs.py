"""The config of each family beside transformers: every field, every way to name a family, what is saved, defaults."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import pickle
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import minibert
from minibert import ModelFormatError
from minibert.bert.families import FAMILIES
from tests.support.families import PAIRS, ROTARY, SAMPLES, by_forward, inputs, make
from tests.support.json_files import change_json
from tests.support.marks import by_default, sampled

pytestmark = pytest.mark.usefixtures("one_thread")


def edit(folder: Path, *without: str, **fields: Any) -> None:
    change_json(folder / "config.json", *without, **fields)


def config_of(family: str) -> Any:
    return getattr(transformers, f"{FAMILIES[family].class_name}Config")


@contextlib.contextmanager
def all_names_are_known(family: str) -> Iterator[None]:
    """Check that transformers looks up no name in a config meanwhile that a config.json can set and no test has."""
    config, names = config_of(family), set[str]()
    look_up = config.__getattribute__

    def noted(self: Any, name: str) -> Any:
        names.add(name)
        return look_up(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "__getattribute__", noted)
        yield
    fields = {field.name for field in dataclasses.fields(config)}
    known = {
        *REFUSED,
        *OTHERS,
        *VALUES,
        *SIZES,
        *CHANGING,
        *(name for one in SAMPLES.values() for name in one.changing),
    }
    unknown = {name for name in names - known - fields if not name.startswith("_") and not hasattr(config, name)}
    assert unknown == set(), "transformers looks up names that this test does not have"


def both(folder: Path, family: str, kind: str = "Model", *, padded: bool = True) -> list[Any]:
    """Return the hidden states and the logits of minibert and of transformers; an error of one of them as a text.

    Without padding, transformers may compute attention without a mask, by sdpa.
    """
    ids, mask = inputs(1)
    if not padded:
        mask[:] = 1
    shape = (2, 2, 17) if kind == "ForMultipleChoice" else ids.shape
    given = {"input_ids": ids.reshape(shape), "attention_mask": mask.reshape(shape)}
    found: list[Any] = []
    for library, error in ((minibert, ModelFormatError), (transformers, Exception)):
        try:
            loader = getattr(library, f"{FAMILIES[family].class_name}{kind}")
            exact = {"attn_implementation": "eager"} if padded or FAMILIES[family].has_relative_bias else {}
            model = loader.from_pretrained(folder, dtype=torch.float32, **exact)
            tensors = {name: torch.as_tensor(array) for name, array in given.items()}
            with torch.no_grad():
                output = model.eval()(**tensors, output_hidden_states=True, return_dict=True)
        except error as refused:
            found.append(str(refused))
            continue
        states = [torch.as_tensor(state).detach().numpy()[mask == 1] for state in output.hidden_states]
        heads = [np.asarray(value) for name, value in output.items() if name.endswith("logits")]
        if kind == "ForMultipleChoice":
            heads = [logits.ravel() for logits in heads]
        found.append(
            [*states, *(logits[mask == 1 if logits.shape[:2] == ids.shape else [0, 1, 2]] for logits in heads)]
        )
    return found


def check_equal(
    folder: Path, family: str, kind: str = "Model", *, may_be_refused: bool = False, padded: bool = True
) -> None:
    ours, theirs = both(folder, family, kind, padded=padded)
    if may_be_refused and isinstance(ours, str) and isinstance(theirs, str):
        return
    assert not isinstance(ours, str), ours
    assert not isinstance(theirs, str), theirs
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-5)


# --- every field of config.json ---------------------------------------------------------------------------------------

# The sizes of tensors: two values, each with a checkpoint of its own.
SIZES = {
    **{"vocab_size": (150, 230), "max_position_embeddings": (20, 64), "type_vocab_size": (1, 4)},
    **dict.fromkeys(("hidden_size", "dim", "embedding_size"), (12, 36)),
    **dict.fromkeys(("intermediate_size", "hidden_dim"), (7, 80)),
    **dict.fromkeys(("num_hidden_layers", "n_layers"), (1, 2)),
}
# Fields that change numbers in some families; `Sample.changing` has those of one family.
CHANGING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("hidden_act", "activation"), ("relu", "gelu_new")),
    **dict.fromkeys(("num_attention_heads", "n_heads"), (1, 6)),
    **{"layer_norm_eps": (1e-3, 1.0), "pad_token_id": (0, 7), "tie_word_embeddings": (True, False)},
}
# What minibert refuses by name where transformers may run it; `Sample.refused` has what one family or class reads.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("is_decoder", "add_cross_attention", "is_encoder_decoder", "is_causal"), (True, 1)),
    "transformers_weights": ("other.safetensors", "model.safetensors.index.json"),
    **{"position_embedding_type": ("relative_key", "rotary"), "pruned_heads": ({"0": [1]},)},
    **{"per_layer_config": ({"0": {"layer_norm_eps": 1.0}},), "quantization_config": ({"load_in_8bit": True},)},
}
# Every other field of a config of transformers changes nothing. Those whose default is None, or that must have a value
# that transformers takes, have this value here; `harmless` makes one for the others.
VALUES: dict[str, Any] = {
    **{"architectures": ["Mine"], "dtype": "bfloat16", "problem_type": "regression", "transformers_version": "4.1"},
    **{"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0}, "classifier_dropout": 0.5},
    **{"esmfold_config": {"esm_type": "x"}, "vocab_list": ["a"]},
    **{"bos_token_id": 3, "eos_token_id": 5, "chunk_size_feed_forward": 17, "return_dict": True},
}
# Names that are no fields, of files or of what transformers looks up in every config.
OTHERS: dict[str, Any] = {
    **{"a field of tomorrow": [1], "num_labels": 3, "torch_dtype": "float16", "attn_implementation": "eager"},
    **dict.fromkeys(("is_decoder", "add_cross_attention", "is_encoder_decoder", "is_causal"), False),
    **dict.fromkeys(
        ("use_cache", "output_attentions", "gradient_checkpointing", "output_cross_attentions", "gguf_file"), True
    ),
    **{"text_config": {"is_causal": True}, "auto_map": {}, "decoder": None, "generator": None, "fusion_config": {}},
    **dict.fromkeys(("vision_aspect_ratio", "vision_feature_layer", "vision_feature_select_strategy"), "full"),
    **dict.fromkeys(("mlp_layer_types", "mtp_layer_types"), ["sparse"] * 3),
    **{"num_heads": 6, "embed_dim": 48, "partial_rotary_factor": 0.5, "tie_last_hidden_states": True},
    **{"summary_first_dropout": 0.5, "summary_proj_to_labels": False},  # True: a tensor's shape
}


def other_value(field: dataclasses.Field[Any]) -> Any:
    """Return a value that the field does not have by default."""
    if field.name in VALUES:
        return VALUES[field.name]
    if isinstance(field.default, bool):
        return not field.default
    assert isinstance(field.default, int | float), f"a field of transformers for which VALUES has no value: {field}"
    return field.default + (3 if isinstance(field.default, int) else 0.25)


def fields_of(family: str) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """Return the fields of a family that change numbers, and those that change nothing with other values for them."""
    config, sample = config_of(family), SAMPLES[family]
    own = {field.name for field in dataclasses.fields(config)}
    changing = {name: values for name, values in CHANGING.items() if name in own or hasattr(config, name)}
    read = {*SIZES, *CHANGING, *sample.changing, *sample.of_heads, *REFUSED, *(name for _, name, _ in sample.refused)}
    harmless = {field.name: other_value(field) for field in dataclasses.fields(config) if field.name not in read}
    if family in ROTARY and family != "esm":  # no code reads this one
        harmless["position_embedding_type"] = "relative_key"
    return changing | dict(sample.changing), {**OTHERS, **harmless}


@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_the_other_fields_change_nothing_in_transformers_either(tmp_path: Path, family: str) -> None:
    make(tmp_path, family)
    edit(tmp_path, **fields_of(family)[1] | {"return_dict": False})
    for padded in (True, False):
        with all_names_are_known(family):
            check_equal(tmp_path, family, padded=padded)


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_every_field_has_the_effect_that_it_has_in_transformers(tmp_path: Path, family: str, every: int) -> None:
    """Each field. By default a family has every second value of those that many families have."""
    changing, harmless = fields_of(family)
    first = [*FAMILIES].index(family) % every
    make(tmp_path, family)
    plain = (tmp_path / "config.json").read_text()
    for field, values in changing.items():
        for value in values if field in SAMPLES[family].changing else values[first::every]:
            (tmp_path / "config.json").write_text(plain)
            edit(tmp_path, **{field: value})
            check_equal(tmp_path, family, may_be_refused=True)
        # A config must state its sizes; the padding that ModernBERT has by default is not in so small a vocabulary.
        if "heads" not in field and (family, field) not in product(
            ("modernbert", "eurobert", "esm"), ("pad_token_id",)
        ):
            (tmp_path / "config.json").write_text(plain)
            edit(tmp_path, field)
            check_equal(tmp_path, family, may_be_refused=True)
    for field in REFUSED.keys() - harmless.keys() | {"is_decoder", "add_cross_attention", "is_encoder_decoder"}:
        for value in REFUSED[field]:
            if (family, value) not in (("xlm-roberta", "rotary"), ("esm", "rotary")):  # a file of jina_embeddings_v3
                (tmp_path / "config.json").write_text(plain)
                edit(tmp_path, **{field: value})
                with pytest.raises(ModelFormatError, match=field):
                    minibert.load(tmp_path)
    for field in SIZES.keys() & {field.name for field in dataclasses.fields(config_of(family))}:
        for value in SIZES[field][first::every]:
            if family in ("eurobert", "ultrabert") and field == "hidden_size":
                value = 24 * value // 12  # heads have an even number of features
            make(tmp_path, family, **{field: value})
            check_equal(tmp_path, family)


OF_HEADS = [(*pair, field) for pair in PAIRS for field in SAMPLES[pair[0]].of_heads]
OF_WORDS = ("decoder_bias", "tie_word_embeddings", "prediction_head_size")
ALWAYS = [
    (family, kind, field)
    for family, kind, field in OF_HEADS
    if kind == ("ForMaskedLM" if field in OF_WORDS else "ForSequenceClassification")
]


@pytest.mark.parametrize(("family", "kind", "field"), sampled(OF_HEADS, 10, ALWAYS))
def test_every_field_of_heads(tmp_path: Path, family: str, kind: str, field: str) -> None:
    for value in SAMPLES[family].of_heads[field]:
        theirs = make(tmp_path, family, kind, **{field: value})
        check_equal(tmp_path, family, kind)
        ours = minibert.load(tmp_path)
        assert ours.num_parameters() == theirs.num_parameters()
        ours.save_pretrained(tmp_path / "saved")
        again = type(theirs).from_pretrained(tmp_path / "saved").state_dict()
        assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items())


def test_names_of_other_types_and_fields(tmp_path: Path) -> None:
    """A type with the forward of a family says so, and a number of layers in the file the field that it contradicts."""
    theirs = transformers.SplinterModel(transformers.SplinterConfig(hidden_size=24, num_attention_heads=3)).eval()
    theirs.save_pretrained(tmp_path / "splinter")
    with pytest.raises(ModelFormatError, match="'bert'"):
        minibert.load(tmp_path / "splinter")
    edit(tmp_path / "splinter", model_type="bert", architectures=None)
    ids = np.arange(5, 20)[None]
    expected = theirs(torch.as_tensor(ids)).last_hidden_state.detach().numpy()
    np.testing.assert_allclose(minibert.load(tmp_path / "splinter")(ids).last_hidden_state, expected, rtol=0, atol=2e-5)
    make(tmp_path / "albert", "albert")
    edit(tmp_path / "albert", num_hidden_groups=2)
    with pytest.raises(ModelFormatError, match="num_hidden_groups=2"):
        minibert.load(tmp_path / "albert")


@pytest.mark.parametrize(("family", "kind"), by_forward(pair for pair in PAIRS if pair[1] != "Model"))
def test_every_field_that_a_head_reads(tmp_path: Path, family: str, kind: str) -> None:
    make(tmp_path, family, kind, **({} if kind == "ForQuestionAnswering" else {"num_labels": 3}))
    labels = ("id2label", "label2id", "num_labels") if kind == "ForQuestionAnswering" else ()
    edit(tmp_path, **{name: value for name, value in fields_of(family)[1].items() if name not in labels})
    if kind != "ForMultipleChoice":
        edit(tmp_path, summary_type="mean", summary_use_proj=False, summary_activation="tanh")
    edit(tmp_path, **{FAMILIES[family].own_name("hidden_act"): "relu", "layer_norm_eps": 1e-2})
    with all_names_are_known(family):
        check_equal(tmp_path, family, kind)


@pytest.mark.parametrize(
    ("family", "kind", "field", "values"), [(family, *row) for family in FAMILIES for row in SAMPLES[family].refused]
)
def test_a_value_that_is_not_implemented_is_refused_by_name(
    tmp_path: Path, family: str, kind: str, field: str, values: tuple[Any, ...]
) -> None:
    make(tmp_path, family, kind)
    for value in values:
        edit(tmp_path, **{field: value})
        with pytest.raises(ModelFormatError, match=f"{field}="):
            minibert.load(tmp_path)


def test_a_window_that_is_stated_by_its_half(tmp_path: Path) -> None:
    make(tmp_path, "modernbert")
    edit(tmp_path, "local_attention", sliding_window=3)
    model = minibert.load(tmp_path)
    assert model.config.local_attention == 6
    changed = minibert.load(tmp_path, config=dataclasses.replace(model.config, local_attention=10))
    for saved in (model, changed):
        saved.save_pretrained(tmp_path / "saved")
        check_equal(tmp_path / "saved", "modernbert")


def test_a_file_of_ultraberts_own_code(tmp_path: Path) -> None:
    """It has a window and a rotary base for each layer, and older names of the tensors."""
    make(tmp_path, "ultrabert", "ForMaskedLM")
    old = {"attention_windows": [4, 4, 0], "rope_theta": [50.0, 50.0, 900.0]}
    edit(tmp_path, "layer_types", "rope_parameters", "sliding_window", **old)
    path = tmp_path / "model.safetensors"
    names = {r"^model\.": "ultrabert.", r"^head\.decoder\.": "cls."}
    tensors = load_file(path)
    for new, older in names.items():
        tensors = {re.sub(new, older, name): array for name, array in tensors.items()}
    save_file(tensors, path, {"format": "pt"})
    check_equal(tmp_path, "ultrabert", "ForMaskedLM")
    minibert.load(tmp_path).save_pretrained(tmp_path / "saved")
    check_equal(tmp_path / "saved", "ultrabert", "ForMaskedLM")


def test_of_two_names_of_a_field_the_one_that_transformers_reads_counts(tmp_path: Path) -> None:
    make(tmp_path, "distilbert")
    edit(tmp_path, num_attention_heads=6, hidden_act="tanh", intermediate_size=9, layer_norm_eps=1.0)
    check_equal(tmp_path, "distilbert")
    assert minibert.load(tmp_path).config.num_attention_heads == 6


# --- every way to name a family ---------------------------------------------------------------------------------------

CALLED = {f"{family.class_name}Model": name for name, family in FAMILIES.items()}
LOADERS = ("load", "AutoModel", "SentenceTransformer", *CALLED)


def states_of(name: str, folder: Path, ids: np.ndarray) -> np.ndarray | None:
    """Return the last hidden states of a model that is loaded by name; None if it is refused."""
    try:
        if name == "SentenceTransformer":
            model = minibert.SentenceTransformer(folder).model
        else:
            loader = getattr(minibert, name)
            model = (loader if name == "load" else loader.from_pretrained)(folder)
    except ModelFormatError:
        return None
    return model(ids, output_hidden_states=True).hidden_states[-1]


@pytest.mark.filterwarnings("ignore:config.json names", "ignore:.*has no modules.json")
@pytest.mark.parametrize(
    ("family", "kind"),  # without and with a prefix before the tensors' names
    by_default(
        product(("bert", "roberta", "electra", "distilbert", "mpnet"), ("Model", "ForMaskedLM")),
        *(("bert", "Model"), ("roberta", "ForMaskedLM"), ("electra", "Model"), ("distilbert", "ForMaskedLM")),
    ),
)
def test_no_way_to_name_a_family_gives_other_numbers(
    tmp_path: Path, family: str, kind: str, small_folder: Path
) -> None:
    theirs = make(tmp_path, family, kind, **({"embedding_size": 24} if family == "electra" else {}))
    ids = inputs(1)[0]
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((small_folder / name).read_bytes())
    with torch.no_grad():
        expected = theirs.base_model(torch.as_tensor(ids)).last_hidden_state.numpy()
    plain = (tmp_path / "config.json").read_text()
    stated: list[tuple[dict[str, Any], set[str]]] = [
        *(({}, without) for without in ({"model_type"}, {"architectures"}, {"model_type", "architectures"})),
        ({"architectures": ["Mine"]}, {"model_type"}),
    ]
    for other in FAMILIES.values():
        if other.field != FAMILIES[family].field:
            for wrong in ({"model_type": other.model_type}, {"architectures": [f"{other.class_name}{kind}"]}):
                # Without a prefix of the tensors, one wrong statement alone cannot be noticed.
                alone = [{"model_type", "architectures"} - wrong.keys()] if kind == "ForMaskedLM" else []
                stated += [(wrong, without) for without in ([set(), *alone])]
    for fields, without in stated:
        (tmp_path / "config.json").write_text(plain)
        edit(tmp_path, *without, **fields)
        says = (kind == "ForMaskedLM" or "architectures" not in without) and fields.get("architectures") != ["Mine"]
        for name in LOADERS:
            called = CALLED.get(name, family)
            if kind == "Model" and not says and "model_type" in without and called != family:
                continue  # nothing says the family but the class that is called
            found = states_of(name, tmp_path, ids)
            if found is not None:
                message = f"{name} {fields} without {without}"
                np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5, err_msg=message)
            elif not fields and called == family:
                assert not says
                assert name not in CALLED, f"{name} refuses a folder that says its family, without {without}"


def test_a_config_names_its_family(tmp_path: Path) -> None:
    make(tmp_path, "roberta")
    assert type(minibert.BertConfig.from_pretrained(tmp_path)) is minibert.RobertaConfig
    with pytest.raises(ModelFormatError, match="is a RobertaConfig, not a ElectraConfig; AutoConfig"):
        minibert.ElectraConfig.from_pretrained(tmp_path)
    edit(tmp_path, "model_type", "architectures")
    with pytest.raises(ModelFormatError, match=r"model_type is absent\. Write it into the file"):
        minibert.load(tmp_path)
    assert minibert.RobertaConfig.from_pretrained(tmp_path).model_type == "roberta"
    config = minibert.RobertaConfig.from_pretrained(tmp_path)
    assert type(minibert.load(tmp_path, config=config)).__name__ == "RobertaModel"


# --- the order of arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kind"),
    by_forward([*product(FAMILIES, ("Model.embeddings", "Model.trace")), *PAIRS]),
)
def test_arguments_by_position_have_the_order_of_transformers(tmp_path: Path, family: str, kind: str) -> None:
    kind, _, part = kind.partition(".")
    untied = {"tie_word_embeddings": False} if kind == "ForMaskedLM" and family in ("electra", "mpnet") else {}
    # Theirs are not projected, there is no module, or it takes a mask.
    if family in ("albert", "eurobert", "ultrabert", "esm") and part == "embeddings":
        return
    same = {"embedding_size": 24} if family == "electra" else {}  # nor are these
    theirs, ours = make(tmp_path, family, kind, **untied, **same), minibert.load(tmp_path)
    called = theirs.base_model.embeddings if part == "embeddings" else theirs
    call = {"embeddings": getattr(ours, "embeddings", None), "trace": ours.trace}.get(part, ours)
    names = [name for name in inspect.signature(called.forward).parameters if name not in ("kwargs", "cache_length")]
    shape = (1, 2, 9) if kind == "ForMultipleChoice" else (1, 9)
    mask = np.ones(shape, np.int64)
    mask[..., 6:] = 0
    given = {
        **{"input_ids": np.arange(5, 14) + 0 * mask, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)},
        **{"position_ids": np.arange(20, 29) + 0 * mask},
    }

    def numbers(output: Any) -> np.ndarray:
        value = getattr(output, "output", output)
        value = value if isinstance(value, np.ndarray) else next(iter(value.values()))
        return value[mask == 1] if value.shape[:2] == (1, 9) else value

    by_name = {name: array for name, array in given.items() if name in names}
    expected = numbers(call(**by_name))
    for count in range(1, len(names) + 1):
        values = [given.get(name) for name in names[:count]]
        rest = {name: array for name, array in by_name.items() if name not in names[:count]}
        try:
            found, refused = numbers(call(*values, **rest)), ""
        except TypeError as error:
            found, refused = expected, str(error)
        np.testing.assert_array_equal(found, expected)
        assert refused == "" or (count > 2 and "by name, such as position_ids=" in refused)
    if part != "trace" and (family, kind) != ("distilbert", "ForMultipleChoice"):  # theirs fails with positions
        with torch.no_grad():
            tensors = {name: torch.as_tensor(array) for name, array in by_name.items()}
            wanted = called(**tensors)
        wanted = wanted if isinstance(wanted, torch.Tensor) else next(iter(wanted.values()))
        np.testing.assert_allclose(expected, numbers(wanted.numpy()), rtol=0, atol=3e-5)


# --- what is saved, for transformers ----------------------------------------------------------------------------------

NLI = ("contradiction", "neutral", "entailment")
LABELS = {"id2label": dict(enumerate(NLI)), "label2id": {name: i for i, name in enumerate(NLI)}}


def test_a_saved_config_keeps_what_old_files_say_and_gains_label2id(tmp_path: Path) -> None:
    make(tmp_path, "mpnet", "ForSequenceClassification", **LABELS)
    edit(tmp_path, "label2id", "dtype", torch_dtype="float16", num_labels=3, pad_token_id=None)
    minibert.load(tmp_path).save_pretrained(tmp_path / "saved")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert (config.label2id, config.id2label, config.pad_token_id) == (LABELS["label2id"], LABELS["id2label"], None)
    assert config.dtype == torch.float32  # the weights that were saved


# --- the configs of families ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_a_config_with_the_defaults_and_names_of_transformers(family: str, tmp_path: Path) -> None:
    name = f"{FAMILIES[family].class_name}Config"
    ours, theirs = getattr(minibert, name), getattr(transformers, name)()
    config = ours()
    for field in (*dataclasses.asdict(config), *theirs.to_dict(), *theirs.attribute_map, "num_labels"):
        if hasattr(config, field) and hasattr(theirs, field) and (family, field) != ("esm", "vocab_size"):  # None
            value = getattr(config, field)
            assert (list(value) if isinstance(value, tuple) else value) == getattr(theirs, field), field
    assert {"model_type", "vocab_size", "hidden_size", *FAMILIES[family].fields.values()} <= set(dir(config))
    assert type(config) is ours
    assert isinstance(config, minibert.BertConfig)
    assert pickle.loads(pickle.dumps(config)) == config
    types = {"layer_types": None} if FAMILIES[family].has_windows else {}  # which are those of all layers
    changed = dataclasses.replace(config, vocab_size=77, **{FAMILIES[family].own_name("num_hidden_layers"): 2}, **types)
    assert type(changed) is ours
    assert (changed.vocab_size, changed.num_hidden_layers, changed.model_type) == (77, 2, family)
    changed.save_pretrained(tmp_path)
    assert ours.from_pretrained(tmp_path) == changed == minibert.AutoConfig.from_pretrained(tmp_path)
    again = type(theirs).from_pretrained(tmp_path)
    assert (again.num_hidden_layers, again.vocab_size, again.label2id) == (2, 77, {"LABEL_0": 0, "LABEL_1": 1})


def test_settings_that_a_file_does_not_have_are_compared(tmp_path: Path) -> None:
    make(tmp_path, "distilbert")
    minibert.DistilBertModel.from_pretrained(tmp_path, hidden_size=24, layer_norm_eps=1e-12)
    for name in ("num_hidden_layers", "num_attention_heads", "embedding_size"):
        with pytest.raises(ValueError, match=rf"{name}=5\), but the model has {name}="):
            minibert.DistilBertModel.from_pretrained(tmp_path, **{name: 5})
