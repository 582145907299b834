"""The config of each family beside transformers: every field, every way to name a family, what is saved, defaults."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import minibert
from minibert import ModelFormatError
from minibert.bert.families import FAMILIES, Family
from tests.models.test_families import KINDS, PAIRS, ROTARY, exact_modernbert, inputs, make  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_thread")


def edit(folder: Path, *without: str, **fields: Any) -> None:
    path = folder / "config.json"
    stated = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in stated.items() if name not in without}))


@contextlib.contextmanager
def fields_read(config: type[Any]) -> Iterator[set[str]]:
    """Yield the names that transformers looks up in a config meanwhile, and that a config.json can set."""
    names: set[str] = set()
    look_up = config.__getattribute__

    def noted(self: Any, name: str) -> Any:
        names.add(name)
        return look_up(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "__getattribute__", noted)
        yield names
    fields = {field.name for field in dataclasses.fields(config)}
    names -= {name for name in names if name.startswith("_") or (hasattr(config, name) and name not in fields)}


def both(folder: Path, family: Family, kind: str = "Model", *, padded: bool = True) -> list[Any]:
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
            loader = getattr(library, f"{family.class_name}{kind}")
            exact = {"attn_implementation": "eager"} if padded or family.has_relative_bias else {}
            model = loader.from_pretrained(folder, dtype=torch.float32, **exact)
            tensors = {name: torch.as_tensor(array) for name, array in given.items()}
            with torch.no_grad():
                output = model.eval()(**tensors, output_hidden_states=True, return_dict=True)
        except error as refused:
            found.append(str(refused))
            continue
        states = [np.asarray(state)[mask == 1] for state in output.hidden_states]
        heads = [np.asarray(value) for name, value in output.items() if name.endswith("logits")]
        shown = mask == 1 if kind in ("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering") else [0, 1, 2]
        if kind == "ForMultipleChoice":
            heads = [logits.ravel() for logits in heads]
        found.append([*states, *(logits[shown] for logits in heads)])
    return found


def check_equal(
    folder: Path, family: Family, kind: str = "Model", *, may_be_refused: bool = False, padded: bool = True
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
# Fields that change numbers in some families.
CHANGING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("hidden_act", "activation"), ("relu", "gelu_new")),
    **dict.fromkeys(("num_attention_heads", "n_heads"), (1, 6)),
    **{"layer_norm_eps": (1e-3, 1.0), "pad_token_id": (0, 7), "tie_word_embeddings": (True, False)},
}
# The same for the families that have them.
CHANGING_OWN: dict[str, tuple[Any, ...]] = {
    "head_dim": (8, 16),
    "layer_types": (["sliding_attention"] * 3, ["full_attention", "full_attention", "sliding_attention"]),
    **{"local_attention": (2, 7), "sliding_window": (0, 5)},
    **{"norm_eps": (1e-3, 1.0), "hidden_activation": ("relu", "silu")},
}
ROPE: dict[str, tuple[Any, ...]] = {
    **{
        "rope_parameters": (
            {"rope_type": "linear", "factor": 2.0},
            {"rope_theta": 50.0},
            {"partial_rotary_factor": 0.5},
        )
    },
    **{"rope_theta": (77.0,), "rope_scaling": ({"type": "linear", "factor": 3.0}, {"rope_theta": 9.0})},
}
NESTED = {name: tuple({"full_attention": rope} for rope in ropes) for name, ropes in ROPE.items()}
# Fields that decide which tensors there are, or what a head of ModernBERT computes: each with a checkpoint of its own.
OF_HEADS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias"), (True, False)),
    **{"classifier_activation": ("relu", "gelu"), "classifier_pooling": ("cls", "mean")},
}
# Fields that change nothing, for each the two values that all of them have together.
HARMLESS: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout"), (0.0, 0.5)),
    **dict.fromkeys(("attention_dropout", "qa_dropout", "seq_classif_dropout", "classifier_dropout"), (0.0, 0.5)),
    **{"initializer_range": (1.0, 0.5), "summary_last_dropout": (0.0, 0.5), "chunk_size_feed_forward": (1, 17)},
    **dict.fromkeys(("use_cache", "output_hidden_states", "output_attentions", "return_dict"), (True, False)),
    **{"sinusoidal_pos_embds": (True, False), "bos_token_id": (3, 5), "eos_token_id": (3, [5, 6])},
    **{"dtype": ("bfloat16", "float32"), "torch_dtype": ("float16", None), "transformers_version": ("4.1", "9")},
    **{"architectures": (["Mine"], None), "problem_type": ("regression", "multi_label_classification")},
    **{"id2label": ({0: "a", 1: "b", 2: "c"}, None), "label2id": ({"a": 0}, {"b": 2}), "num_labels": (3, 3)},
    **{"is_decoder": (False, False), "add_cross_attention": (False, False), "is_encoder_decoder": (False, False)},
    **{"relative_attention_num_buckets": (32, 32), "a field of tomorrow": ([1], {})},
    **dict.fromkeys(("embedding_dropout", "mlp_dropout", "initializer_cutoff_factor"), (0.0, 0.5)),
    **dict.fromkeys(("deterministic_flash_attn", "sparse_prediction"), (True, False)),
    **dict.fromkeys(("sparse_pred_ignore_index", "cls_token_id", "sep_token_id"), (3, 5)),
    # Names that are no field of a config, and that transformers looks up in it.
    **{
        "text_config": ({"is_causal": True}, None),
        "decoder": (None, {"hidden_act": "relu"}),
        "generator": (None, None),
    },
    **{"is_causal": (False, None), "fusion_config": ({}, None), "tie_last_hidden_states": (True, True)},
    **dict.fromkeys(("gradient_checkpointing", "output_cross_attentions", "gguf_file"), (True, False)),
    **dict.fromkeys(
        ("vision_aspect_ratio", "vision_feature_layer", "vision_feature_select_strategy"), ("full", "default")
    ),
    **dict.fromkeys(("mlp_layer_types", "mtp_layer_types"), (["dense"] * 3, ["sparse"] * 3)),
    **{
        "num_heads": (1, 6),
        "embed_dim": (8, 48),
        "partial_rotary_factor": (0.5, 0.25),
        "summary_first_dropout": (0.0, 0.5),
    },
    **{"attn_implementation": ("eager", None), "summary_proj_to_labels": (False, False)},  # True: a tensor's shape
}
# What minibert refuses by name where transformers may run it.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("is_decoder", "add_cross_attention", "is_encoder_decoder", "is_causal"), (True, 1)),
    "transformers_weights": ("other.safetensors", "model.safetensors.index.json"),
    **{"position_embedding_type": ("relative_key", "rotary"), "pruned_heads": ({"0": [1]},)},
    **{"per_layer_config": ({"0": {"layer_norm_eps": 1.0}},), "quantization_config": ({"load_in_8bit": True},)},
}
# The same for families or heads that read the field.
REFUSED_BY: tuple[tuple[str, str, str, tuple[Any, ...]], ...] = (
    *((model_type, "Model", "pad_token_id", (None, -1, 39)) for model_type in ("roberta", "xlm-roberta", "camembert")),
    *((model_type, "Model", "hidden_act", ("quick_gelu", "mish")) for model_type in ("bert", "roberta", "mpnet")),
    ("distilbert", "Model", "activation", ("quick_gelu", "mish")),
    ("mpnet", "Model", "relative_attention_num_buckets", (16, 64)),
    ("electra", "ForMultipleChoice", "summary_type", ("last", "mean")),
    ("electra", "ForMultipleChoice", "summary_use_proj", (False,)),
    ("electra", "ForMultipleChoice", "summary_activation", ("tanh",)),
    *((model_type, "Model", "head_dim", (4, 16)) for model_type in ROTARY),
    *((model_type, "Model", "hidden_act", ("quick_gelu", "mish")) for model_type in ROTARY[:3]),
    ("modernbert", "Model", "hidden_activation", ("quick_gelu", "mish")),
    ("modernbert", "Model", "classifier_activation", ("quick_gelu", 3)),
    ("modernbert", "Model", "classifier_pooling", ("max", None)),
    ("modernbert", "Model", "norm_bias", ("x", 2)),
    ("modernbert", "Model", "sliding_window", ("7", -1, 2.5)),
    ("modernbert", "Model", "tie_last_hidden_states", (False,)),
)


KNOWN = {*SIZES, *CHANGING, *CHANGING_OWN, *ROPE, *OF_HEADS, *HARMLESS, *REFUSED, *(row[2] for row in REFUSED_BY)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_has_the_effect_that_it_has_in_transformers(tmp_path: Path, family: str) -> None:
    kind = FAMILIES[family]
    config = getattr(transformers, f"{kind.class_name}Config")
    own = {field.name for field in dataclasses.fields(config)}
    assert own <= KNOWN, "a field of transformers that this test does not have"
    make(tmp_path, family)
    plain = (tmp_path / "config.json").read_text()
    for i in range(2):
        eos = {"eos_token_id": 5} if family == "nomic_bert" else {}  # transformers has one id there
        positions = {"position_embedding_type": ("sans_pos", "relative_key")[i]} if family in ROTARY else {}
        edit(tmp_path, **{name: values[i] for name, values in HARMLESS.items()} | eos | positions)
        with fields_read(config) as names:
            for padded in (True, False):
                check_equal(tmp_path, kind, padded=padded)
        assert sorted(names - KNOWN) == [], "transformers looks up a name that this test does not have"
    changing = CHANGING | {
        field: values for field, values in CHANGING_OWN.items() if field in own or hasattr(config, field)
    }
    changing |= NESTED if family == "modernbert" else ROPE if family in ROTARY else {}
    for field, values in changing.items():
        for value in values:
            (tmp_path / "config.json").write_text(plain)
            edit(tmp_path, **{field: value})
            check_equal(tmp_path, kind, may_be_refused=True)
    for field, values in REFUSED.items():
        for value in values:
            if field == "position_embedding_type" and (
                family in ROTARY or (family, value) == ("xlm-roberta", "rotary")
            ):
                continue
            (tmp_path / "config.json").write_text(plain)
            edit(tmp_path, **{field: value})
            with pytest.raises(ModelFormatError, match=field):
                minibert.load(tmp_path)
    for field in SIZES.keys() & own:
        for value in SIZES[field]:
            make(tmp_path, family, **{field: value})
            check_equal(tmp_path, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", OF_HEADS)
def test_every_field_of_modernberts_heads(tmp_path: Path, field: str, kind: str) -> None:
    for value in OF_HEADS[field]:
        theirs = make(tmp_path, "modernbert", kind, **{field: value})
        check_equal(tmp_path, FAMILIES["modernbert"], kind)
        ours = minibert.load(tmp_path)
        assert ours.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters())
        ours.save_pretrained(tmp_path / "saved")
        again = type(theirs).from_pretrained(tmp_path / "saved").state_dict()
        assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family, kind in PAIRS if kind != "Model"])
def test_every_field_that_a_head_reads(tmp_path: Path, family: str, kind: str) -> None:
    untied = {"tie_word_embeddings": False} if kind == "ForMaskedLM" and family in ("electra", "mpnet") else {}
    make(tmp_path, family, kind, **untied, **({} if kind == "ForQuestionAnswering" else {"num_labels": 3}))
    summary = {"summary_type": "mean", "summary_use_proj": False, "summary_activation": "tanh"}
    own = FAMILIES[family].fields.get("hidden_act", "hidden_act")
    labels = ("id2label", "label2id", "num_labels") if kind == "ForQuestionAnswering" else ()
    harmless = {name: values[0] for name, values in HARMLESS.items() if name not in labels}
    edit(tmp_path, **harmless, **(summary if kind != "ForMultipleChoice" else {}))
    with fields_read(getattr(transformers, f"{FAMILIES[family].class_name}Config")) as names:
        check_equal(tmp_path, FAMILIES[family], kind)
    assert sorted(names - KNOWN) == [], "transformers looks up a name that this test does not have"
    edit(tmp_path, **{own: "relu", "layer_norm_eps": 1e-2})
    check_equal(tmp_path, FAMILIES[family], kind)


@pytest.mark.parametrize(("family", "kind", "field", "values"), REFUSED_BY)
def test_a_value_that_is_not_implemented_is_refused_by_name(
    tmp_path: Path, family: str, kind: str, field: str, values: tuple[Any, ...]
) -> None:
    make(tmp_path, family, kind)
    for value in values:
        edit(tmp_path, **{field: value})
        with pytest.raises(ModelFormatError, match=f"{field}="):
            minibert.load(tmp_path)


def test_fields_that_may_be_absent_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    for family, more in (("electra", {"embedding_size": 128}), ("roberta", {"layer_norm_eps": 1e-12}), ("mpnet", {})):
        make(tmp_path, family, **more)
        edit(tmp_path, "embedding_size", "pad_token_id", "layer_norm_eps", "hidden_act", "type_vocab_size")
        if family == "roberta":  # 2 is the default
            edit(tmp_path, type_vocab_size=1)
        check_equal(tmp_path, FAMILIES[family])


def test_a_window_that_is_stated_by_its_half(tmp_path: Path) -> None:
    make(tmp_path, "modernbert")
    edit(tmp_path, "local_attention", sliding_window=3)
    model = minibert.load(tmp_path)
    assert model.config.local_attention == 6
    changed = minibert.load(tmp_path, config=dataclasses.replace(model.config, local_attention=10))
    for saved in (model, changed):
        saved.save_pretrained(tmp_path / "saved")
        check_equal(tmp_path / "saved", FAMILIES["modernbert"])


def test_of_two_names_of_a_field_the_one_that_transformers_reads_counts(tmp_path: Path) -> None:
    make(tmp_path, "distilbert")
    edit(tmp_path, num_attention_heads=6, hidden_act="tanh", intermediate_size=9, layer_norm_eps=1.0)
    check_equal(tmp_path, FAMILIES["distilbert"])
    assert minibert.load(tmp_path).config.num_attention_heads == 6


# --- every way to name a family ---------------------------------------------------------------------------------------

LOADERS = ("load", "AutoModel", "SentenceTransformer", *(f"{family.class_name}Model" for family in FAMILIES.values()))


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
@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM"])  # without and with a prefix before the tensors' names
@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "mpnet"])
def test_no_way_to_name_a_family_gives_other_numbers(
    tmp_path: Path, family: str, kind: str, small_folder: Path
) -> None:
    more = {"tie_word_embeddings": False} if kind == "ForMaskedLM" and family in ("electra", "mpnet") else {}
    theirs, ids = (
        make(tmp_path, family, kind, **more, **({"embedding_size": 24} if family == "electra" else {})),
        inputs(1)[0],
    )
    for name in ("vocab.txt", "tokenizer_config.json"):
        if (small_folder / name).exists():
            (tmp_path / name).write_bytes((small_folder / name).read_bytes())
    with torch.no_grad():
        expected = theirs.base_model(torch.as_tensor(ids)).last_hidden_state.numpy()
    plain = (tmp_path / "config.json").read_text()
    own, others = FAMILIES[family], [one for one in FAMILIES.values() if one.field != FAMILIES[family].field]
    stated: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({}, ("model_type",)),
        ({}, ("architectures",)),
        ({}, ("model_type", "architectures")),
        ({"architectures": ["Mine"]}, ("model_type",)),
        *(({"model_type": other.model_type}, ()) for other in others),
        *(({"architectures": [f"{other.class_name}{kind}"]}, ()) for other in others),
    ]
    if kind == "ForMaskedLM":  # without a prefix of the tensors, one wrong statement alone cannot be noticed
        stated += [({"model_type": other.model_type}, ("architectures",)) for other in others]
        stated += [({"architectures": [f"{other.class_name}{kind}"]}, ("model_type",)) for other in others]
    for fields, without in stated:
        (tmp_path / "config.json").write_text(plain)
        edit(tmp_path, *without, **fields)
        says = bool(kind == "ForMaskedLM" or "architectures" not in without) and fields.get("architectures") != ["Mine"]
        for name in LOADERS:
            called = next((one for one in FAMILIES.values() if name == f"{one.class_name}Model"), None)
            if kind == "Model" and not says and "model_type" in without and called not in (None, own):
                continue  # nothing says the family but the class that is called
            found = states_of(name, tmp_path, ids)
            if found is not None:
                np.testing.assert_allclose(
                    found, expected, rtol=0, atol=3e-5, err_msg=f"{name} {fields} without {without}"
                )
            elif fields == {} and called in (None, own) and (says or called is not None):
                raise AssertionError(f"{name} refuses a folder that says its family, without {without}")


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
    [*((family, f"Model.{part}") for family in FAMILIES for part in ("embeddings", "trace")), *PAIRS],
)
def test_arguments_by_position_have_the_order_of_transformers(tmp_path: Path, family: str, kind: str) -> None:
    kind, _, part = kind.partition(".")
    untied = {"tie_word_embeddings": False} if kind == "ForMaskedLM" and family in ("electra", "mpnet") else {}
    same = {"embedding_size": 24} if family == "electra" else {}  # theirs are not projected
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


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_transformers_reads_the_whole_config_of_a_saved_model(tmp_path: Path, family: str, kind: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    more: dict[str, Any] = {"tie_word_embeddings": False} if kind == "ForMaskedLM" else {}
    more |= {"dropout" if family == "distilbert" else "hidden_dropout_prob": 0.25, "initializer_range": 0.5}
    more |= {"bos_token_id": 7, "classifier_dropout": 0.5, "of_a_team": {"a": [1]}}
    more |= {} if kind == "ForQuestionAnswering" else LABELS | {"problem_type": "multi_label_classification"}
    make(before, family, kind, **more)
    minibert.load(before).save_pretrained(after)
    expected, found = (transformers.AutoConfig.from_pretrained(folder).to_dict() for folder in (before, after))
    assert found.pop("_name_or_path") != expected.pop("_name_or_path")
    expected.setdefault("tie_word_embeddings", True)  # that of nomic does not have the field
    assert found == expected


def test_a_saved_config_keeps_what_old_files_say_and_gains_label2id(tmp_path: Path) -> None:
    make(tmp_path, "mpnet", "ForSequenceClassification", **LABELS)
    edit(tmp_path, "label2id", "dtype", torch_dtype="float16", num_labels=3, pad_token_id=None)
    minibert.load(tmp_path).save_pretrained(tmp_path / "saved")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert (config.label2id, config.id2label, config.pad_token_id) == (LABELS["label2id"], LABELS["id2label"], None)
    assert config.dtype == torch.float32  # the weights that were saved


TASKS: dict[str, tuple[Any, ...]] = {
    "fill-mask": ("ForMaskedLM", "the cat [MASK] on the mat"),
    "text-classification": ("ForSequenceClassification", "the cat"),
    "zero-shot-classification": ("ForSequenceClassification", "the cat", ["dog", "mat"]),
    "token-classification": ("ForTokenClassification", "the cat sat"),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_pipelines_of_transformers_run_on_a_saved_model(
    tmp_path: Path, family: str, task: str, small_folder: Path
) -> None:
    kind, *texts = TASKS[task]
    make(tmp_path, family, kind, **({"tie_word_embeddings": False} if kind == "ForMaskedLM" else LABELS))
    minibert.load(tmp_path).save_pretrained(tmp_path / "saved")
    tokenizer = transformers.BertTokenizer.from_pretrained(small_folder, model_max_length=30)
    names = ["input_ids", "attention_mask"]
    tokenizer.model_input_names = names
    answers = [
        transformers.pipeline(task, model=str(folder), tokenizer=tokenizer)(*texts)
        for folder in (tmp_path, tmp_path / "saved")
    ]
    assert answers[0] == answers[1]


# --- the configs of families ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_a_config_with_the_defaults_and_names_of_transformers(family: str, tmp_path: Path) -> None:
    name = f"{FAMILIES[family].class_name}Config"
    ours, theirs = getattr(minibert, name), getattr(transformers, name)()
    config = ours()
    for field in (*dataclasses.asdict(config), *theirs.to_dict(), *theirs.attribute_map, "num_labels"):
        if hasattr(config, field) and hasattr(theirs, field):
            value = getattr(config, field)
            assert (list(value) if isinstance(value, tuple) else value) == getattr(theirs, field), field
    assert {"model_type", "vocab_size", "hidden_size", *FAMILIES[family].fields.values()} <= set(dir(config))
    assert type(config) is ours
    assert isinstance(config, minibert.BertConfig)
    assert pickle.loads(pickle.dumps(config)) == config
    types = {"layer_types": None} if family == "modernbert" else {}  # which are those of all layers
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


def test_auto_model_for_pre_training_loads_the_head_that_transformers_has_for_it(tmp_path: Path) -> None:
    for family in ("roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"):
        theirs = make(
            tmp_path / family, family, "ForMaskedLM", **({"tie_word_embeddings": False} if family == "mpnet" else {})
        )
        model = minibert.AutoModelForPreTraining.from_pretrained(tmp_path / family)
        assert type(model).__name__ == type(theirs).__name__
    make(tmp_path / "bert", "bert", "ForMaskedLM")
    with pytest.raises(ModelFormatError, match=r"BertForPreTraining: cls.seq_relationship.* never makes"):
        minibert.AutoModelForPreTraining.from_pretrained(tmp_path / "bert")
