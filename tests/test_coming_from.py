"""The page "coming from other libraries": every row of its tables is true.

Each row has a function here, under the row's first cell. It compares with the library where that is installed.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert import BertModel, BertTokenizer, SentenceTransformer, combine_layers, embed_tokens, integrations, util
from minibert.compat.bert_serving import BertClient
from tests.support import sentence_heads
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.head_models import head_checkpoint

ROOT = Path(__file__).parent.parent
TEXTS = ["A cat sleeps on the mat.", "Stocks fell."]


class World:
    """What the checks use: the real model in minibert and in the other libraries, and an empty folder."""

    def __init__(self, folder: Path, minilm: Path) -> None:
        self.folder, self.minilm = folder, minilm
        self.tokenizer, self.model = BertTokenizer.from_pretrained(minilm), BertModel.from_pretrained(minilm)
        self.sentences = SentenceTransformer(minilm)

    def transformers(self) -> tuple[Any, Any]:
        from transformers import BertModel as TheirModel
        from transformers import BertTokenizer as TheirTokenizer

        return TheirTokenizer.from_pretrained(self.minilm), TheirModel.from_pretrained(self.minilm).eval()

    def sentence_transformers(self, folder: Path | None = None, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch and transformers themselves
            from sentence_transformers import SentenceTransformer as Theirs

            return Theirs(str(folder or self.minilm), device="cpu", **options)


CHECKS: dict[str, Callable[[World], None]] = {}


def row(cell: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    def keep(check: Callable[[World], None]) -> Callable[[World], None]:
        CHECKS[cell] = check
        return check

    return keep


@pytest.fixture
def world(tmp_path: Path, minilm_folder: Path) -> World:
    return World(tmp_path, minilm_folder)


@pytest.mark.parametrize("cell", CHECKS)
def test_row(cell: str, world: World) -> None:
    CHECKS[cell](world)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


# --- transformers -----------------------------------------------------------------------------------------------------


@row(
    "`from transformers import BertModel, BertTokenizer, BertTokenizerFast, BertConfig, AutoModel, AutoTokenizer, "
    "AutoConfig`"
)
def _names(world: World) -> None:
    for name in ("BertModel", "BertTokenizerFast", "BertConfig", "AutoModel", "AutoTokenizer", "AutoConfig"):
        getattr(minibert, name).from_pretrained(world.minilm)


@row('`model(**tokenizer(text, return_tensors="pt"))`')
def _tensors(world: World) -> None:
    tokenizer, model = world.transformers()
    theirs = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    ours = world.model(**world.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert isinstance(ours.pooler_output, torch.Tensor)
    close(ours.pooler_output, theirs.pooler_output.detach())
    arrays = world.model(**world.tokenizer(TEXTS, padding=True, return_tensors="np"))
    assert isinstance(arrays.pooler_output, np.ndarray)


@row("`AutoModelForMaskedLM.from_pretrained(id)` and its sisters")
def _heads(world: World) -> None:
    from transformers import AutoModelForMaskedLM

    folder = head_checkpoint(world.folder / "head", "BertForMaskedLM")
    theirs = AutoModelForMaskedLM.from_pretrained(folder)
    ids = torch.tensor([[5, 6, 7]])
    for load in (minibert.load, minibert.AutoModelForMaskedLM.from_pretrained):
        model = load(folder)
        assert type(model) is minibert.BertForMaskedLM
        close(model(ids).logits, theirs(ids).logits.detach())
    with pytest.raises(minibert.ModelFormatError, match="minibert never makes random"):
        minibert.AutoModelForSequenceClassification.from_pretrained(folder)


@row('`tokenizer(text)["input_ids"]`')
def _lists(world: World) -> None:
    tokenizer, _ = world.transformers()
    for texts in (TEXTS[0], TEXTS):
        assert world.tokenizer(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert world.tokenizer(TEXTS[0], return_tensors="np")["input_ids"].ndim == 2


@row('`torch.no_grad()`, `.eval()`, `.to("cpu")`, `.detach()`, `.cpu()`')
def _harmless_methods(world: World) -> None:
    inputs = world.tokenizer(TEXTS[0], return_tensors="pt").to(torch.device("cpu", 0), non_blocking=True)
    for batch in (inputs, world.transformers()[0](TEXTS[0])):
        with pytest.raises(TypeError, match="dtype"):
            batch.to("cpu", dtype=torch.float16)
    with torch.no_grad():
        output = world.model.eval().to("cpu")(**inputs)
    expected = world.model(**world.tokenizer(TEXTS[0], return_tensors="np")).last_hidden_state
    np.testing.assert_array_equal(output.last_hidden_state.detach().cpu().numpy(), expected)


@row("`next(model.parameters()).device`")
def _device_of_parameters(world: World) -> None:
    first = next(world.model.parameters())
    assert first.device == world.model.device == next(world.transformers()[1].parameters()).device
    first.zero_()  # a copy
    assert world.model.embeddings.LayerNorm.weight.any()
    assert first.numel() < 1000
    theirs = [name for name, _ in world.transformers()[1].named_parameters()]
    assert [name for name, _ in world.model.named_parameters()] == theirs


@row('`.to("cuda")`, `.half()`, `.train()`, `torch_dtype=torch.float16`')
def _refused(world: World) -> None:
    for call in (
        lambda: world.model.to("cuda"),
        lambda: world.model.half(),
        lambda: world.model.train(),
        lambda: BertModel.from_pretrained(world.minilm, torch_dtype=torch.float16),
    ):
        with pytest.raises(ValueError, match=r"minibert .*(CPU|float32|trained)"):
            call()


@row('`do_lower_case=True`, `attn_implementation="sdpa"`, `device_map="cpu"`, `trust_remote_code=True`')
def _harmless_keywords(world: World) -> None:
    BertTokenizer.from_pretrained(world.minilm, do_lower_case=True, trust_remote_code=True)
    BertModel.from_pretrained(world.minilm, attn_implementation="sdpa", device_map="cpu", trust_remote_code=True)
    with pytest.raises(ValueError, match=r"do_lower_case=False.*Leave it out"):
        BertTokenizer.from_pretrained(world.minilm, do_lower_case=False)
    with pytest.raises(ValueError, match="Leave it out"):
        BertModel.from_pretrained(world.minilm, device_map="cuda")


@row("`last, pooled = model(**inputs, return_dict=False)`")
def _two_values(world: World) -> None:
    inputs = world.tokenizer(TEXTS[0], return_tensors="pt")
    tokenizer, model = world.transformers()
    last, pooled = model(**tokenizer(TEXTS[0], return_tensors="pt"), return_dict=False)
    assert len(world.model(**inputs, return_dict=False)) == 3
    ours = world.model(**inputs, return_dict=False, output_hidden_states=False)
    for mine, theirs in zip(ours, (last, pooled), strict=True):
        close(mine, theirs.detach())


@row("`last, pooled, states = model(**inputs)`")
def _three_values(world: World) -> None:
    last, pooled, states = world.model(**world.tokenizer(TEXTS[0], return_tensors="pt"))
    assert (last.ndim, pooled.ndim, len(states)) == (3, 2, 7)
    tokenizer, model = world.transformers()
    names = [*model(**tokenizer(TEXTS[0], return_tensors="pt"), output_hidden_states=True)]
    assert names == ["last_hidden_state", "pooler_output", "hidden_states"]


@row("`output[2]` with `output_attentions=True`")
def _index_of_attentions(world: World) -> None:
    from transformers import BertModel as TheirModel

    tokenizer, _ = world.transformers()
    model = TheirModel.from_pretrained(world.minilm, attn_implementation="eager").eval()
    theirs = model(**tokenizer(TEXTS[0], return_tensors="pt"), output_attentions=True)
    inputs = world.tokenizer(TEXTS[0], return_tensors="pt")
    ours = world.model(**inputs, output_attentions=True)
    assert ours[2] is ours.to_tuple()[2] is ours.hidden_states
    without = world.model(**inputs, output_attentions=True, output_hidden_states=False)
    for found in (ours.attentions, without[2], without.to_tuple()[2]):
        close(torch.stack(found), torch.stack(theirs[2]).detach())


@row("`torch.stack(output.hidden_states[-4:]).sum(0)`")
def _sum_of_layers(world: World) -> None:
    tensors = world.model(**world.tokenizer(TEXTS[0], return_tensors="pt")).hidden_states
    arrays = world.model(**world.tokenizer(TEXTS[0], return_tensors="np")).hidden_states
    close(torch.stack(tensors[-4:]).sum(0), combine_layers(arrays[-4:], "sum"))


@row("`return_offsets_mapping=True`, `word_ids()` and a loop that averages")
def _words(world: World) -> None:
    text = "Here is the sentence I want embeddings for."
    inputs = world.tokenizer(text, return_tensors="np", return_offsets_mapping=True)
    assert inputs.pop("offset_mapping").shape == (1, 14, 2)
    states = world.model(**inputs).last_hidden_state[0]
    ids = inputs.word_ids(0)
    loop = [states[[i for i, word in enumerate(ids) if word == number]].mean(axis=0) for number in range(9)]
    close(embed_tokens(world.model, world.tokenizer, text).words("mean").vectors, loop)


@row("`word_embeddings.weight.detach().numpy()`, `.data`, `.cpu()`")
def _table(world: World) -> None:
    _, model = world.transformers()
    theirs = model.embeddings.word_embeddings.weight.detach().numpy()
    table = world.model.embeddings.word_embeddings.weight
    cosine = torch.cosine_similarity(table[2332], table[3035].detach(), dim=0)
    close(cosine, util.cos_sim(theirs[2332], theirs[3035])[0, 0])
    for found in (table.detach().numpy(), table.data.cpu().numpy()):
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, theirs)
    assert type(world.model.get_input_embeddings()([[1, 2]])) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1


@row("`torch.from_numpy(word_embeddings.weight)`")
def _tensor_of_the_table(world: World) -> None:
    table = world.model.get_input_embeddings().weight
    copy = torch.tensor(table)
    close(copy, table)
    before = world.model([[101, 1996, 102]]).last_hidden_state
    copy.zero_()
    np.testing.assert_array_equal(world.model([[101, 1996, 102]]).last_hidden_state, before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is read-only
        shared = torch.from_numpy(table)
    assert shared.data_ptr() == table.ctypes.data


@row("`self.bert = AutoModel.from_pretrained(id)` in a `torch.nn.Module`")
def _module_around_it(world: World) -> None:
    class Classifier(torch.nn.Module):
        def __init__(self, bert: Any) -> None:
            super().__init__()
            self.bert, self.top = bert, torch.nn.Linear(384, 2)

        def forward(self, **inputs: Any) -> torch.Tensor:
            return self.top(self.bert(**inputs).pooler_output)

    ours, theirs = Classifier(world.model), Classifier(world.transformers()[1])
    assert [name for name, _ in ours.named_parameters()] == ["top.weight", "top.bias"]
    assert len(list(theirs.parameters())) > 100
    ours(**world.tokenizer(TEXTS[0], return_tensors="pt")).sum().backward()
    assert ours.top.weight.grad is not None


@row("`tokenizer.tokenize([text, text])`")
def _tokens_of_a_list(world: World) -> None:
    tokenizer, _ = world.transformers()
    assert tokenizer.tokenize(["A cat.", "A dog."]) == tokenizer.tokenize("A cat.")  # the dog is dropped
    with pytest.raises(TypeError, match="expected one str"):
        world.tokenizer.tokenize(["A cat.", "A dog."])
    for given, options in ((["A cat."], {}), (["A", "cat."], {"is_split_into_words": True})):
        assert world.tokenizer.tokenize(given, **options) == tokenizer.tokenize(given, **options)


@row("`print(tokenizer(text))`")
def _printed(world: World) -> None:
    tokenizer, _ = world.transformers()
    for options in ({}, {"return_tensors": "pt", "padding": True}):
        assert str(world.tokenizer(TEXTS, **options)) == str(tokenizer(TEXTS, **options))


@row("`output.last_hidden_state` at padding")
def _padding(world: World) -> None:
    tokenizer, model = world.transformers()
    theirs = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state
    ours = world.model(**world.tokenizer(TEXTS, padding=True, return_tensors="np")).last_hidden_state
    assert not ours[1, -1].any()
    assert theirs[1, -1].any()
    assert np.abs(ours.mean(1)[1] - theirs.detach().numpy().mean(1)[1]).max() > 0.01


@row("`output.pooler_output` of a checkpoint without a pooler")
def _without_pooler(world: World) -> None:
    from transformers import BertConfig as TheirConfig
    from transformers import BertModel as TheirModel

    config = TheirConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=32
    )
    TheirModel(config, add_pooling_layer=False).save_pretrained(world.folder)
    assert BertModel.from_pretrained(world.folder)([[1, 2]]).pooler_output is None
    assert TheirModel.from_pretrained(world.folder)(torch.tensor([[1, 2]])).pooler_output is not None


@row("`list(tokenizer.vocab)`")
def _vocabulary(world: World) -> None:
    tokenizer, _ = world.transformers()
    assert dict(world.tokenizer.vocab) == dict(tokenizer.vocab)
    assert list(world.tokenizer.vocab.values()) == list(range(30522))
    assert list(tokenizer.vocab.values()) != list(range(30522))


@row("`tokenizer.encode_plus(text)`")
def _encode_plus(world: World) -> None:
    for tokenizer in (world.tokenizer, world.transformers()[0]):
        with pytest.raises(AttributeError, match="encode_plus"):
            tokenizer.encode_plus(TEXTS[0])


@row("names that minibert does not have, such as `Trainer`")
def _other_names(world: World) -> None:
    with pytest.raises(ImportError, match=r"minibert has no Trainer: "):
        exec("from minibert import Trainer", {})


# --- sentence-transformers --------------------------------------------------------------------------------------------


@row("`from sentence_transformers import SentenceTransformer, SimilarityFunction, util`")
def _sentence_names(world: World) -> None:
    exec("from minibert import SentenceTransformer, SimilarityFunction, util", {})


@row("`from sentence_transformers.util import cos_sim, semantic_search, paraphrase_mining`")
def _util_names(world: World) -> None:
    exec("from minibert.util import cos_sim, semantic_search, paraphrase_mining", {})
    with pytest.raises(AttributeError, match=r"minibert.util has no maxsim: "):
        _ = util.maxsim


@row("`convert_to_tensor=True`, `convert_to_numpy=False`, `precision=`, `truncate_dim=`")
def _kinds(world: World) -> None:
    theirs = world.sentence_transformers()
    for options in (
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"precision": "ubinary"},
        {"truncate_dim": 32},
    ):
        mine, other = world.sentences.encode(TEXTS * 2, **options), theirs.encode(TEXTS * 2, **options)
        assert type(mine) is type(other)
        assert [np.asarray(one).dtype for one in mine] == [np.asarray(one).dtype for one in other]
        np.testing.assert_allclose([np.asarray(one) for one in mine], [np.asarray(one) for one in other], atol=1e-5)


@row("`model.similarity(a, b).numpy()`")
def _similarity(world: World) -> None:
    vectors = world.sentences.encode(TEXTS)
    scores = world.sentences.similarity(vectors, vectors)
    close(scores.detach().cpu().numpy(), world.sentence_transformers().similarity(vectors, vectors).numpy())
    assert isinstance(scores, np.ndarray)
    best, places = torch.topk(scores[0], k=2)
    assert (isinstance(best, torch.Tensor), places.tolist()) == (True, [0, 1])
    assert scores.topk(1).indices.tolist() == [[0], [1]]
    assert scores.argmax(dim=1).tolist() == [0, 1]
    close(torch.stack([scores[0], scores[1]], dim=0), scores)
    close(torch.tensor(vectors[0]) * scores[0][1], vectors[0] * float(scores[0][1]))
    assert isinstance(world.sentences.similarity(torch.tensor(vectors), vectors), torch.Tensor)


@row("`model.similarity(a, b).max(1)`, `.std()`, `.nonzero()` on scores of arrays")
def _array_methods(world: World) -> None:
    vectors = world.sentences.encode(TEXTS)
    scores = world.sentences.similarity(vectors, vectors)
    for call in (lambda: scores.max(1), lambda: scores.std(), lambda: scores.repeat(2, 1)):
        with pytest.raises(TypeError, match="one thing for an array and another for a tensor"):
            call()
    assert isinstance(scores.nonzero(), tuple)
    assert scores.copy().sort() is None
    tensors = world.sentences.encode(TEXTS, convert_to_tensor=True)
    assert world.sentences.similarity(tensors, tensors).max(1).indices.tolist() == [0, 1]


@row("`device=None`")
def _device(world: World) -> None:
    assert str(world.sentences.device) == "cpu"
    with pytest.raises(ValueError, match="device='cuda'"):
        SentenceTransformer(world.minilm, device="cuda")


@row('`config_kwargs={"num_hidden_layers": 2}`')
def _other_config(world: World) -> None:
    with pytest.raises(ValueError, match=r"num_hidden_layers=2.*encode\(texts, layers=2\)"):
        SentenceTransformer(world.minilm, config_kwargs={"num_hidden_layers": 2})
    SentenceTransformer(world.minilm, config_kwargs={"num_hidden_layers": 6})
    theirs = world.sentence_transformers(config_kwargs={"num_hidden_layers": 2}).encode(TEXTS)
    close(world.sentences.encode(TEXTS, layers=2), theirs)


@row("`model.tokenize(texts)`, `preprocess(texts)`")
def _features(world: World) -> None:
    theirs = world.sentence_transformers().preprocess(TEXTS)
    for ours in (world.sentences.tokenize(TEXTS), world.sentences.preprocess(TEXTS)):
        assert isinstance(ours["input_ids"], np.ndarray)
        made = ours.convert_to_tensors("pt")
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            torch.testing.assert_close(made[name], theirs[name])


@row("`SparseEncoder.encode(texts)`")
def _sparse_tensors(world: World) -> None:
    folder = sentence_heads.model_folder(world.folder / "sparse", sentence_heads.MASKED)
    ours = minibert.SparseEncoder(folder).encode(["the cat sat", "a cat"])
    theirs = sentence_heads.theirs("SparseEncoder", folder).encode(["the cat sat", "a cat"]).coalesce()
    close(ours.to_tensor().to_dense(), theirs.to_dense())
    torch.testing.assert_close(ours.to_tensor().indices(), theirs.indices())


@row("`pool = model.start_multi_process_pool()`, `encode(texts, pool=pool)`")
def _pool(world: World) -> None:
    pool = world.sentences.start_multi_process_pool()
    np.testing.assert_array_equal(world.sentences.encode(TEXTS, pool=pool), world.sentences.encode(TEXTS))
    world.sentences.stop_multi_process_pool(pool)


@row("`encode(texts)` with texts that are too long")
def _too_long(world: World) -> None:
    long = ["cats and dogs " * 300]
    with pytest.warns(UserWarning, match=r"tokens and (was|were) cut"):
        ours = world.sentences.encode(long)
    close(ours, world.sentence_transformers().encode(long))
    with pytest.raises(ValueError, match="tokens"):
        world.sentences.encode(long, truncation="error")


@row('`tokenizer_kwargs={"padding_side": "left"}`')
def _padding_side(world: World) -> None:
    with pytest.raises(ValueError, match="padding on the left would shift the positions"):
        SentenceTransformer(world.minilm, tokenizer_kwargs={"padding_side": "left"})
    expected, theirs = world.sentences.encode(TEXTS), world.sentence_transformers()
    close(theirs.encode(TEXTS), expected)
    for model in (world.sentences, theirs):
        model.tokenizer.padding_side = "left"
    assert not world.sentences.tokenize(TEXTS)["attention_mask"][1, 0]
    np.testing.assert_array_equal(world.sentences.encode(TEXTS), expected)
    moved = np.abs(theirs.encode(TEXTS) - expected).max(axis=1)
    assert moved[0] < 1e-5 < 1e-3 < moved[1]


@row('`encode_document(texts)` where the model stores a prompt "passage" or "corpus" and none called "document"')
def _document_prompt(world: World) -> None:
    prompts = {"prompts": {"passage": "the cat "}}
    folder = sentence_model(world.folder / "model", config_sentence_transformers=prompts)
    ours, theirs = SentenceTransformer(folder), world.sentence_transformers(folder)
    close(ours.encode_document(["on the mat"]), ours.encode(["the cat on the mat"]))
    close(theirs.encode_document(["on the mat"]), ours.encode(["on the mat"]))


@row('`encode(text, output_value="token_embeddings")`')
def _token_embeddings(world: World) -> None:
    ours = world.sentences.encode(TEXTS[0], output_value="token_embeddings")
    close(ours.cpu().numpy(), world.sentence_transformers().encode(TEXTS[0], output_value="token_embeddings"))
    close(embed_tokens(world.sentences.model, world.sentences.tokenizer, TEXTS[0]).vectors, ours)


@row("`encode(texts, output_value=None)`")
def _rows_of_tokens(world: World) -> None:
    ours, tensors = (world.sentences.encode(TEXTS, output_value=None, convert_to_tensor=kind) for kind in (False, True))
    theirs = world.sentence_transformers().encode(TEXTS, output_value=None)
    for mine, tensor, other in zip(ours, tensors, theirs, strict=True):
        rows = len(mine["input_ids"])
        assert (rows, len(other["input_ids"])) == (int(other["attention_mask"].sum()), len(ours[0]["input_ids"]))
        close(mine["token_embeddings"], other["token_embeddings"][:rows])
        close(tensor["sentence_embedding"], mine["sentence_embedding"])
        assert isinstance(tensor["token_embeddings"], torch.Tensor)
    assert len(ours[0]["input_ids"]) > len(ours[1]["input_ids"])


@row("`model.tokenizer.model_max_length = 64`")
def _limit_of_the_tokenizer(world: World) -> None:
    for model in (world.sentences, world.sentence_transformers()):
        model.tokenizer.model_max_length = 64
        assert model.max_seq_length == 64


@row('`models.Transformer(...)`, `model(features)`, `model[1].pooling_mode = "cls"`')
def _modules_of_a_model(world: World) -> None:
    for program, error in (
        ("from minibert import models; models.Transformer('bert-base-uncased')", AttributeError),
        ("from minibert.models import Pooling", ImportError),
        ("model(model.tokenize(['a']))", TypeError),
        ("model[1].pooling_mode = 'cls'", AttributeError),
    ):
        with pytest.raises(error, match=r"SentenceTransformer\(folder\)|encode\(texts"):
            exec(program, {"model": world.sentences})


@row('`modules=[...]`, `backend="onnx"`')
def _parts(world: World) -> None:
    for options in ({"modules": [object()]}, {"backend": "onnx"}):
        with pytest.raises(ValueError, match="minibert"):
            SentenceTransformer(world.minilm, **options)


@row("`fit`, trainers, losses")
def _training(world: World) -> None:
    assert not hasattr(world.sentences, "fit")
    with pytest.raises(ImportError, match="minibert does not train"):
        exec("from minibert import losses", {})


# --- fastembed --------------------------------------------------------------------------------------------------------


@row("`list(TextEmbedding(id).embed(texts))`")
def _embed(world: World) -> None:
    np.testing.assert_array_equal([*world.sentences.encode_iter(TEXTS)], world.sentences.encode(TEXTS))


@row("`passage_embed(texts)`")
def _passages(world: World) -> None:
    prompts = {"prompts": {"query": "the cat ", "document": "on the mat "}}
    model = SentenceTransformer(sentence_model(world.folder / "model", config_sentence_transformers=prompts))
    np.testing.assert_array_equal(model.encode_document(["a"]), model.encode(["on the mat a"]))


@row("`query_embed(texts)`")
def _queries(world: World) -> None:
    prompts = {"prompts": {"query": "the cat ", "document": "on the mat "}}
    model = SentenceTransformer(sentence_model(world.folder / "model", config_sentence_transformers=prompts))
    np.testing.assert_array_equal(model.encode_query(["a"]), model.encode(["the cat a"]))


@row("`TextEmbedding(id, threads=2)`")
def _threads(world: World) -> None:
    two = SentenceTransformer(world.minilm, num_threads=2)
    np.testing.assert_array_equal(two.encode(TEXTS), world.sentences.encode(TEXTS))


@row("`embed(texts, parallel=4)`")
def _parallel(world: World) -> None:
    with pytest.raises(TypeError, match="parallel"):
        world.sentences.encode(TEXTS, parallel=4)


# --- bert-as-service --------------------------------------------------------------------------------------------------


def states(world: World, text: str) -> np.ndarray:
    """Return the hidden states of one text: (layers + 1, S, H)."""
    return np.stack(world.model(**world.tokenizer(text, return_tensors="np")).hidden_states)[:, 0]


@row("`bert-serving-start -model_dir folder`")
def _server(world: World) -> None:
    folder = random_checkpoint(world.folder / "model")  # a plain BERT; no warning, as there was none
    assert BertClient(model=str(folder)).encode(["the cat"]).ndim == 2


@row("`-pooling_layer -2 -pooling_strategy REDUCE_MEAN`, the defaults")
def _client(world: World) -> None:
    expected = [states(world, text)[-2].mean(axis=0) for text in TEXTS]
    with BertClient(port=4000, port_out=4001, model=str(world.minilm)) as client:
        close(client.encode(TEXTS), expected)
        assert client.encode(TEXTS).dtype == np.float32
        close([answer.content[0] for answer in client.encode_async([text] for text in TEXTS)], expected)
    close(BertClient(model=world.sentences, output_fmt="list").encode(TEXTS), expected)
    unit = world.sentences.encode(TEXTS, layers=-2, pooling="REDUCE_MEAN")  # this model ends with Normalize
    close(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True))


@row("`-pooling_layer 0`")
def _first_layer(world: World) -> None:
    found = BertClient(model=world.sentences, pooling_layer=[0, -1], pooling_strategy="CLS_TOKEN").encode(TEXTS[:1])
    close(found[0], np.concatenate([states(world, TEXTS[0])[1, 0], states(world, TEXTS[0])[-1, 0]]))


@row("`-pooling_strategy NONE`, `show_tokens=True`")
def _all_tokens(world: World) -> None:
    vectors, tokens = BertClient(model=world.sentences, pooling_strategy="NONE").encode(TEXTS, show_tokens=True)
    assert tokens[1] == ["[CLS]", "stocks", "fell", ".", "[SEP]"]
    assert vectors.shape == (2, len(tokens[0]), 384)
    close(vectors[1, :5], states(world, TEXTS[1])[-2])
    assert not vectors[1, 5:].any()


@row("`-max_seq_len 25`")
def _max_seq_len(world: World) -> None:
    with pytest.warns(UserWarning, match=r"tokens and (was|were) cut"):
        BertClient(model=world.sentences).encode(["cats " * 600])


@row('`bert-serving-start -port 5555`, `BertClient(ip="machine")`')
def _a_service(world: World) -> None:
    """The client and a service are in serving/test_bert_client.py."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with BertClient(ip=url) as client, pytest.raises(ConnectionError, match="does not answer"):
        client.encode(TEXTS)


@row("`is_tokenized=True`")
def _tokens(world: World) -> None:
    with pytest.raises(ValueError, match="give texts"):
        BertClient(model=world.sentences).encode([["a", "cat"]], is_tokenized=True)


@row("`blocking=False`")
def _no_server(world: World) -> None:
    client = BertClient(model=world.sentences)
    for texts, options, error, message in (
        (TEXTS, {"blocking": False}, ValueError, "use encode_async"),
        ("one text", {}, TypeError, "texts is a str; expected a list of str"),
        ([], {}, ValueError, "texts is empty"),
        (["a", " "], {}, ValueError, r"texts\[1\] is blank"),
        ([1], {}, TypeError, r"texts\[0\] is int 1; expected a str"),
    ):
        with pytest.raises(error, match=message):
            client.encode(texts, **options)
    with pytest.raises(ValueError, match="output_fmt"):
        BertClient(output_fmt="json")
    with pytest.raises(ValueError, match="median"):
        BertClient(model=world.sentences, pooling_strategy="median")


@row("Google's `extract_features.py`")
def _google(world: World) -> None:
    command = [sys.executable, "-m", "minibert", "extract", "--help"]
    assert "google" in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# --- libraries that take a model: tests/clients runs them -------------------------------------------------------------


def _class(*names: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        for name in names:
            assert name in integrations.__all__

    return check


for _library, _names_of_it in {
    "LangChain": ("LangChainEmbeddings",),
    "Chroma": ("ChromaEmbeddingFunction",),
    "BERTopic": ("BERTopicBackend",),
    "KeyBERT": ("KeyBERTBackend",),
    "llama-index": ("LlamaIndexEmbedding",),
    "Haystack": ("HaystackTextEmbedder", "HaystackDocumentEmbedder"),
    "mteb": ("MTEBEncoder",),
}.items():
    CHECKS[_library] = _class(*_names_of_it)
