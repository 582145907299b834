"""Rows of the page "coming from other libraries" that no other test covers, compared with the library."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert import BertModel, BertTokenizer, SentenceTransformer, combine_layers, embed_tokens, util
from minibert.compat.bert_serving import BertClient
from tests.support import sentence_heads
from tests.support.checkpoints import random_checkpoint, sentence_model

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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> World:
    return World(tmp_path_factory.mktemp("world"), minilm_folder)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


# --- transformers -----------------------------------------------------------------------------------------------------


def test_tensors(world: World) -> None:
    tokenizer, model = world.transformers()
    theirs = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    ours = world.model(**world.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert isinstance(ours.pooler_output, torch.Tensor)
    close(ours.pooler_output, theirs.pooler_output.detach())
    arrays = world.model(**world.tokenizer(TEXTS, padding=True, return_tensors="np"))
    assert isinstance(arrays.pooler_output, np.ndarray)


def test_device_of_parameters(world: World) -> None:
    first = next(world.model.parameters())
    assert first.device == world.model.device == next(world.transformers()[1].parameters()).device
    first.zero_()  # a copy
    assert world.model.embeddings.LayerNorm.weight.any()
    assert first.numel() < 1000
    theirs = [name for name, _ in world.transformers()[1].named_parameters()]
    assert [name for name, _ in world.model.named_parameters()] == theirs


def test_two_values(world: World) -> None:
    inputs = world.tokenizer(TEXTS[0], return_tensors="pt")
    tokenizer, model = world.transformers()
    last, pooled = model(**tokenizer(TEXTS[0], return_tensors="pt"), return_dict=False)
    assert len(world.model(**inputs, return_dict=False)) == 3
    ours = world.model(**inputs, return_dict=False, output_hidden_states=False)
    for mine, theirs in zip(ours, (last, pooled), strict=True):
        close(mine, theirs.detach())


def test_three_values(world: World) -> None:
    last, pooled, states = world.model(**world.tokenizer(TEXTS[0], return_tensors="pt"))
    assert (last.ndim, pooled.ndim, len(states)) == (3, 2, 7)
    tokenizer, model = world.transformers()
    names = [*model(**tokenizer(TEXTS[0], return_tensors="pt"), output_hidden_states=True)]
    assert names == ["last_hidden_state", "pooler_output", "hidden_states"]


def test_index_of_attentions(world: World) -> None:
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


def test_sum_of_layers(world: World) -> None:
    tensors = world.model(**world.tokenizer(TEXTS[0], return_tensors="pt")).hidden_states
    arrays = world.model(**world.tokenizer(TEXTS[0], return_tensors="np")).hidden_states
    close(torch.stack(tensors[-4:]).sum(0), combine_layers(arrays[-4:], "sum"))


def test_words(world: World) -> None:
    text = "Here is the sentence I want embeddings for."
    inputs = world.tokenizer(text, return_tensors="np", return_offsets_mapping=True)
    assert inputs.pop("offset_mapping").shape == (1, 14, 2)
    states = world.model(**inputs).last_hidden_state[0]
    ids = inputs.word_ids(0)
    loop = [states[[i for i, word in enumerate(ids) if word == number]].mean(axis=0) for number in range(9)]
    close(embed_tokens(world.model, world.tokenizer, text).words("mean").vectors, loop)


def test_table(world: World) -> None:
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


def test_tensor_of_the_table(world: World) -> None:
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


def test_module_around_it(world: World) -> None:
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


def test_tokens_of_a_list(world: World) -> None:
    tokenizer, _ = world.transformers()
    assert tokenizer.tokenize(["A cat.", "A dog."]) == tokenizer.tokenize("A cat.")  # the dog is dropped
    with pytest.raises(TypeError, match="expected one str"):
        world.tokenizer.tokenize(["A cat.", "A dog."])
    for given, options in ((["A cat."], {}), (["A", "cat."], {"is_split_into_words": True})):
        assert world.tokenizer.tokenize(given, **options) == tokenizer.tokenize(given, **options)


def test_printed(world: World) -> None:
    tokenizer, _ = world.transformers()
    for options in ({}, {"return_tensors": "pt", "padding": True}):
        assert str(world.tokenizer(TEXTS, **options)) == str(tokenizer(TEXTS, **options))


def test_padding(world: World) -> None:
    tokenizer, model = world.transformers()
    theirs = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state
    ours = world.model(**world.tokenizer(TEXTS, padding=True, return_tensors="np")).last_hidden_state
    assert not ours[1, -1].any()
    assert theirs[1, -1].any()
    assert np.abs(ours.mean(1)[1] - theirs.detach().numpy().mean(1)[1]).max() > 0.01


def test_without_pooler(world: World) -> None:
    from transformers import BertConfig as TheirConfig
    from transformers import BertModel as TheirModel

    config = TheirConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=32
    )
    TheirModel(config, add_pooling_layer=False).save_pretrained(world.folder / "plain")
    assert BertModel.from_pretrained(world.folder / "plain")([[1, 2]]).pooler_output is None
    assert TheirModel.from_pretrained(world.folder / "plain")(torch.tensor([[1, 2]])).pooler_output is not None


def test_vocabulary(world: World) -> None:
    tokenizer, _ = world.transformers()
    assert dict(world.tokenizer.vocab) == dict(tokenizer.vocab)
    assert list(world.tokenizer.vocab.values()) == list(range(30522))
    assert list(tokenizer.vocab.values()) != list(range(30522))


# --- sentence-transformers --------------------------------------------------------------------------------------------


def test_similarity(world: World) -> None:
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


def test_array_methods(world: World) -> None:
    vectors = world.sentences.encode(TEXTS)
    scores = world.sentences.similarity(vectors, vectors)
    for call in (lambda: scores.max(1), lambda: scores.std(), lambda: scores.repeat(2, 1)):
        with pytest.raises(TypeError, match="one thing for an array and another for a tensor"):
            call()
    assert isinstance(scores.nonzero(), tuple)
    assert scores.copy().sort() is None
    tensors = world.sentences.encode(TEXTS, convert_to_tensor=True)
    assert world.sentences.similarity(tensors, tensors).max(1).indices.tolist() == [0, 1]


def test_other_config(world: World) -> None:
    with pytest.raises(ValueError, match=r"num_hidden_layers=2.*encode\(texts, layers=2\)"):
        SentenceTransformer(world.minilm, config_kwargs={"num_hidden_layers": 2})
    SentenceTransformer(world.minilm, config_kwargs={"num_hidden_layers": 6})
    theirs = world.sentence_transformers(config_kwargs={"num_hidden_layers": 2}).encode(TEXTS)
    close(world.sentences.encode(TEXTS, layers=2), theirs)


def test_sparse_tensors(world: World) -> None:
    folder = sentence_heads.model_folder(world.folder / "sparse", sentence_heads.MASKED)
    ours = minibert.SparseEncoder(folder).encode(["the cat sat", "a cat"])
    theirs = sentence_heads.theirs("SparseEncoder", folder).encode(["the cat sat", "a cat"]).coalesce()
    close(ours.to_tensor().to_dense(), theirs.to_dense())
    torch.testing.assert_close(ours.to_tensor().indices(), theirs.indices())


def test_padding_side(world: World) -> None:
    with pytest.raises(ValueError, match="padding on the left would shift the positions"):
        SentenceTransformer(world.minilm, tokenizer_kwargs={"padding_side": "left"})
    expected, theirs = world.sentences.encode(TEXTS), world.sentence_transformers()
    close(theirs.encode(TEXTS), expected)
    ours = SentenceTransformer(world.minilm)
    for model in (ours, theirs):
        model.tokenizer.padding_side = "left"
    assert not ours.tokenize(TEXTS)["attention_mask"][1, 0]
    np.testing.assert_array_equal(ours.encode(TEXTS), expected)
    moved = np.abs(theirs.encode(TEXTS) - expected).max(axis=1)
    assert moved[0] < 1e-5 < 1e-3 < moved[1]


def test_document_prompt(world: World) -> None:
    prompts = {"prompts": {"passage": "the cat "}}
    folder = sentence_model(world.folder / "model", config_sentence_transformers=prompts)
    ours, theirs = SentenceTransformer(folder), world.sentence_transformers(folder)
    close(ours.encode_document(["on the mat"]), ours.encode(["the cat on the mat"]))
    close(theirs.encode_document(["on the mat"]), ours.encode(["on the mat"]))


def test_token_embeddings(world: World) -> None:
    ours = world.sentences.encode(TEXTS[0], output_value="token_embeddings")
    close(ours.cpu().numpy(), world.sentence_transformers().encode(TEXTS[0], output_value="token_embeddings"))
    close(embed_tokens(world.sentences.model, world.sentences.tokenizer, TEXTS[0]).vectors, ours)


def test_rows_of_tokens(world: World) -> None:
    ours, tensors = (world.sentences.encode(TEXTS, output_value=None, convert_to_tensor=kind) for kind in (False, True))
    theirs = world.sentence_transformers().encode(TEXTS, output_value=None)
    for mine, tensor, other in zip(ours, tensors, theirs, strict=True):
        rows = len(mine["input_ids"])
        assert (rows, len(other["input_ids"])) == (int(other["attention_mask"].sum()), len(ours[0]["input_ids"]))
        close(mine["token_embeddings"], other["token_embeddings"][:rows])
        close(tensor["sentence_embedding"], mine["sentence_embedding"])
        assert isinstance(tensor["token_embeddings"], torch.Tensor)
    assert len(ours[0]["input_ids"]) > len(ours[1]["input_ids"])


def test_limit_of_the_tokenizer(world: World) -> None:
    for model in (SentenceTransformer(world.minilm), world.sentence_transformers()):
        model.tokenizer.model_max_length = 64
        assert model.max_seq_length == 64


def test_modules_of_a_model(world: World) -> None:
    for program, error in (
        ("from minibert import models; models.Transformer('bert-base-uncased')", AttributeError),
        ("from minibert.models import Pooling", ImportError),
        ("model(model.tokenize(['a']))", TypeError),
    ):
        with pytest.raises(error, match=r"SentenceTransformer\(folder\)|encode\(texts"):
            exec(program, {"model": world.sentences})


# --- fastembed --------------------------------------------------------------------------------------------------------


# --- bert-as-service --------------------------------------------------------------------------------------------------


def states(world: World, text: str) -> np.ndarray:
    """Return the hidden states of one text: (layers + 1, S, H)."""
    return np.stack(world.model(**world.tokenizer(text, return_tensors="np")).hidden_states)[:, 0]


def test_server(world: World) -> None:
    folder = random_checkpoint(world.folder / "model")  # a plain BERT; no warning, as there was none
    assert BertClient(model=str(folder)).encode(["the cat"]).ndim == 2


def test_client(world: World) -> None:
    expected = [states(world, text)[-2].mean(axis=0) for text in TEXTS]
    with BertClient(port=4000, port_out=4001, model=str(world.minilm)) as client:
        close(client.encode(TEXTS), expected)
        assert client.encode(TEXTS).dtype == np.float32
        close([answer.content[0] for answer in client.encode_async([text] for text in TEXTS)], expected)
    close(BertClient(model=world.sentences, output_fmt="list").encode(TEXTS), expected)
    unit = world.sentences.encode(TEXTS, layers=-2, pooling="REDUCE_MEAN")  # this model ends with Normalize
    close(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True))


def test_first_layer(world: World) -> None:
    found = BertClient(model=world.sentences, pooling_layer=[0, -1], pooling_strategy="CLS_TOKEN").encode(TEXTS[:1])
    close(found[0], np.concatenate([states(world, TEXTS[0])[1, 0], states(world, TEXTS[0])[-1, 0]]))


def test_all_tokens(world: World) -> None:
    vectors, tokens = BertClient(model=world.sentences, pooling_strategy="NONE").encode(TEXTS, show_tokens=True)
    assert tokens[1] == ["[CLS]", "stocks", "fell", ".", "[SEP]"]
    assert vectors.shape == (2, len(tokens[0]), 384)
    close(vectors[1, :5], states(world, TEXTS[1])[-2])
    assert not vectors[1, 5:].any()


def test_tokens(world: World) -> None:
    with pytest.raises(ValueError, match="give texts"):
        BertClient(model=world.sentences).encode([["a", "cat"]], is_tokenized=True)


def test_no_server(world: World) -> None:
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
