"""The tokenizers of each family beside those of transformers: trained vocabularies, all kinds of files, real texts."""

from __future__ import annotations

import base64
import itertools
import random
import shutil
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordPiece

import minibert
from minibert import BertTokenizer, ModelFormatError
from minibert.checkpoint.files import locate
from tests.support.families import BERT_TOKENS, ROBERTA_TOKENS, ROTARY, SAMPLES, WITH_VOCABULARY, family_folder, train
from tests.support.json_files import change_json, read_json, write_json
from tests.support.marks import by_default
from tests.support.report import REPORT
from tests.support.text_data import english_texts, needs_data, udhr_lines
from tests.support.tokenizer_files import AWKWARD_TEXTS, model_folder
from tests.tokenizer.test_parity import compare, real_texts

MASKS = ["a <mask> b<mask>c  <mask>  d", "</s> <s> x <pad> <unk> y", "[MASK] a  [SEP]b", "▁a Ġb ▁ Ġ"]
MASKS += ["a  [MASK] b [MASK]c", "do n't , a !  b   c\n\n    d  |||IP_ADDRESS||| [unused1]x <|endoftext|>"]
WINDOWS: dict[str, Any] = {"truncation": True, "max_length": 12, "stride": 3, "return_overflowing_tokens": True}
OPTIONS: list[dict[str, Any]] = [
    {},
    WINDOWS,
    WINDOWS | {"truncation_side": "left"},
    {"truncation": True, "max_length": 48, "padding": "max_length", "padding_side": "left"},
    {"add_special_tokens": False, "pad_to_multiple_of": 8},
    {"return_token_type_ids": True},
]
PAIRS: list[dict[str, Any]] = [{}, {"truncation": True, "max_length": 21}, {"truncation": "only_first"}]
OTHERS = [family for family in SAMPLES if family != "esm"]  # its tokenizer in transformers has no offsets
KINDS = [*((family, False) for family in OTHERS), *((family, True) for family in WITH_VOCABULARY if family in OTHERS)]
CLASSES = {family: sample.tokenizer for family, sample in SAMPLES.items() if family not in ROTARY}
"""The families before BERT's successors -> the class that minibert has for them."""


def trained(family: str) -> Tokenizer:
    return train(family, [*AWKWARD_TEXTS, *MASKS, *english_texts()], 400)


def load(folder: Path) -> tuple[BertTokenizer, Any]:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if type(theirs).__name__ == "AlbertTokenizer":  # it returns no token types, and the model needs them for pairs
        theirs.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return BertTokenizer.from_pretrained(folder), theirs


def compare_all(ours: BertTokenizer, theirs: Any, texts: Sequence[str]) -> int:
    """Compare texts, pairs and lists of words; each 32 of them with the next options."""
    singles, pairs, compared = itertools.cycle(OPTIONS), itertools.cycle(PAIRS), 0
    for start in range(0, len(texts), 32):
        some = list(texts[start : start + 32])
        compared += compare(ours, theirs, some, **next(singles))
        options = next(pairs)
        if options.get("truncation") == "only_first":
            options = WINDOWS | options | {"max_length": 24}
        others = ["Is it?"] * len(some) if "stride" in options else some[::-1]
        compared += compare(ours, theirs, some, others, **options)
        words: Any = [text.split() for text in some]
        compared += compare(ours, theirs, words, is_split_into_words=True)
    return compared


FIRST = ["eurobert", *{SAMPLES[family].tokenizer: family for family in reversed(OTHERS)}.values()]
"""A family for each class of tokenizers, and for each of the two without one."""


@pytest.mark.parametrize(("family", "vocabulary"), by_default(KINDS, *(kind for kind in KINDS if kind[0] in FIRST)))
def test_calls_and_names_equal_transformers(tmp_path: Path, family: str, vocabulary: bool) -> None:
    ours, theirs = load(family_folder(tmp_path / "model", family, trained(family), vocabulary=vocabulary))
    assert compare_all(ours, theirs, AWKWARD_TEXTS + MASKS) > 60
    names = ("bos", "eos", "cls", "sep", "pad", "unk", "mask")
    tokens = [name for one in names for name in (f"{one}_token", f"{one}_token_id")]
    more = ["special_tokens_map", "all_special_tokens", "all_special_ids", "vocab_size", "extra_special_tokens"]
    for name in [*tokens, *more]:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert list(ours.model_input_names) == list(theirs.model_input_names)
    assert (ours.get_vocab(), ours.vocab, len(ours)) == (theirs.get_vocab(), theirs.vocab, len(theirs))
    assert list(ours.vocab.values()) == list(range(len(ours)))
    for given in ("[CLS]", ["</s>", "no such token", ""]) if ours.unk_token else ():
        assert ours.convert_tokens_to_ids(given) == theirs.convert_tokens_to_ids(given)
    assert [ours.num_special_tokens_to_add(pair) for pair in (False, True)] == [2, 3 + (ours.sep_token == "</s>")]
    assert ours.model_max_length == (514 if ours.sep_token == "[SEP]" or family in ROTARY else 512)
    for text in AWKWARD_TEXTS + MASKS:
        ids = theirs.encode(text)
        assert ours.tokenize(text) == theirs.tokenize(text)
        assert ours.convert_ids_to_tokens(ids) == (parts := theirs.convert_ids_to_tokens(ids))
        assert ours.convert_tokens_to_ids(parts) == theirs.convert_tokens_to_ids(parts) == ids
        assert ours.convert_tokens_to_string(iter(parts)) == theirs.convert_tokens_to_string(parts)
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip)
    ours.save_pretrained(tmp_path / "saved")
    shutil.copy(tmp_path / "model" / "config.json", tmp_path / "saved")
    again, reference = load(tmp_path / "saved")
    assert type(reference) is type(theirs)
    assert again.init_kwargs == ours.init_kwargs
    assert compare_all(again, reference, AWKWARD_TEXTS + MASKS) > 60


@needs_data
@pytest.mark.parametrize(
    ("family", "most"),
    by_default(itertools.product(OTHERS, (200, 100_000)), *((family, 200) for family in FIRST)),
)
def test_real_texts(tmp_path: Path, family: str, most: int) -> None:
    """The texts of test_parity.py, then spans of words from lines in 45 languages, each text once."""
    ours, theirs = load(family_folder(tmp_path, family, train(family, udhr_lines()[::3], 4000)))
    chance, texts = random.Random(5), dict.fromkeys(real_texts()[:: 1 if most > 5000 else 50])
    while len(texts) < most:
        line = chance.choice(udhr_lines())
        first = chance.randrange(len(line))
        texts[line[first : first + chance.randint(1, 120)]] = None
    compared = compare_all(ours, theirs, list(texts))
    REPORT.append(f"tokenizer of {family}: {len(texts):,} texts, {compared:,} rows compared, 0 mismatches")


def test_spaces_before_texts(tmp_path: Path) -> None:
    """In a window, transformers counts the space before the first token if add_prefix_space is set; minibert does not.

    With the default, neither does.
    """
    folder = family_folder(tmp_path, "roberta", trained("roberta"), vocabulary=True)
    ours = BertTokenizer.from_pretrained(folder, add_prefix_space=True)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
    assert ours.tokenize("a") == theirs.tokenize("a") == ["Ġa"]
    assert compare(ours, theirs, AWKWARD_TEXTS + MASKS, truncation=True, max_length=20) == len(AWKWARD_TEXTS + MASKS)
    options = {"truncation": True, "max_length": 3, "return_overflowing_tokens": True, "return_offsets_mapping": True}
    rows = [one("a b", **options)["offset_mapping"] for one in (ours, theirs)]
    assert [row[1][1] for row in rows] == [(2, 3), (1, 3)]
    bert = family_folder(tmp_path / "bert", "electra", trained("electra"))
    with pytest.raises(ValueError, match="no effect on the tokens of this tokenizer"):
        BertTokenizer.from_pretrained(bert, add_prefix_space=True)


CHANGES: dict[str, dict[str, Any]] = {
    "as in bge-m3": {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    },
    "another layout": {"post_processor": None, "decoder": None},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("class_name", ["XLMRobertaTokenizerFast", "TokenizersBackend", "UnknownTokenizer", None])
def test_the_class_decides_what_a_file_means(tmp_path: Path, class_name: str | None, change: str) -> None:
    folder = family_folder(tmp_path, "xlm-roberta", trained("xlm-roberta"))
    change_json(folder / "tokenizer.json", **CHANGES[change])
    change_json(folder / "tokenizer_config.json", tokenizer_class=class_name)
    ours, theirs = load(folder)
    assert compare(ours, theirs, AWKWARD_TEXTS, return_token_type_ids=False) == len(AWKWARD_TEXTS)
    assert ours.decode(ours.encode("a b")) == theirs.decode(theirs.encode("a b"))


OTHER_PARTS: list[dict[str, Any]] = [
    {"normalizer": None},
    {"normalizer": {"type": "Lowercase"}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
    {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    {"pre_tokenizer": None, "decoder": None, "post_processor": None},
    {"continuing_subword_prefix": "@@"},
    {"max_input_chars_per_word": 8},
    {"unk_token": "[PAD]"},
    {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[PAD]", 0]}},
    {"post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}},
]


@pytest.mark.parametrize("family", by_default(["bert", "distilbert", "electra", "mpnet"], "bert", "mpnet"))
def test_parts_of_a_file_that_are_not_those_of_its_class(tmp_path: Path, family: str) -> None:
    """The classes replace them, and a generic class does not."""
    texts = [*AWKWARD_TEXTS, "Hello-World ÀÉ NAÏVE internationalization"]
    for number, changed in enumerate(OTHER_PARTS):
        if family == "mpnet" and ("[PAD]" in str(changed) or "[SEP]" in str(changed)):
            continue  # its vocabulary does not have them
        for lower in (True, False):
            for name in (CLASSES[family], "PreTrainedTokenizerFast", None):
                folder = family_folder(tmp_path / f"{number} {lower} {name}", family, trained(family))
                model = read_json(folder / "tokenizer.json")["model"]
                inner = {"model": model | changed} if set(changed) <= set(model) else changed
                change_json(folder / "tokenizer.json", **inner)
                change_json(folder / "tokenizer_config.json", tokenizer_class=name, do_lower_case=lower)
                ours, theirs = load(folder)
                for pairs in (None, texts[::-1]):
                    found, expected = (one(texts, pairs, return_offsets_mapping=True) for one in (ours, theirs))
                    assert found["input_ids"] == expected["input_ids"], (changed, name)
                    assert found["offset_mapping"] == expected["offset_mapping"]
                ids = theirs.encode(texts[-1])
                assert ours.decode(ids) == theirs.decode(ids)


GENERIC = ("own", "BertTokenizerFast", "PreTrainedTokenizerFast", "UnknownTokenizer", None)


@pytest.mark.parametrize(
    ("family", "class_name"),
    [
        *by_default(
            itertools.product(OTHERS, GENERIC),
            *itertools.product(FIRST, GENERIC),
            *((family, "own") for family in OTHERS),
        ),
        *(("modernbert", name) for name in ("RobertaTokenizer", "BertTokenizer", "GPTNeoXTokenizerFast")),
    ],
)
def test_what_a_call_returns_for_each_class(tmp_path: Path, family: str, class_name: str | None) -> None:
    """For BERT, ELECTRA, nomic and ALBERT with a generic class minibert returns token types: pairs need them.

    A ModernBERT ignores the class that its files name.
    """
    folder = family_folder(tmp_path, family, trained(family))
    name = SAMPLES[family].tokenizer if class_name == "own" else class_name
    change_json(folder / "tokenizer_config.json", tokenizer_class=name)
    if class_name == "BertTokenizerFast" and not {"[CLS]", "[SEP]"} <= set(trained(family).get_vocab()):
        return
    ours, theirs = load(folder)
    expected = list(theirs("a", "b"))
    if family in ("bert", "electra", "nomic_bert", "albert", "ernie", "megatron-bert"):
        expected = ["input_ids", "token_type_ids", "attention_mask"]
    if family in ("eurobert", "ultrabert"):  # its model does not have token types, whatever class its files name
        expected = ["input_ids", "attention_mask"]
    assert list(ours("a", "b")) == list(ours.model_input_names) == expected
    if family == "modernbert":
        assert compare_all(ours, theirs, AWKWARD_TEXTS + MASKS) > 60


FOLDERS = list(
    itertools.product(
        (None, {"vocab_size": 9999}, {"architectures": ["BertModel"]}), (None, {}, {"model_max_length": 99})
    )
)
"""Contents of config.json and tokenizer_config.json that name neither a model type nor a class; None: no file."""


@pytest.mark.filterwarnings("ignore:.*replaces the normalizer")
@pytest.mark.parametrize("family", by_default(OTHERS, *FIRST))
def test_folders_that_do_not_say_what_they_are(tmp_path: Path, family: str) -> None:
    """tokenizer.json decides, whose normalizer is not that of the class; but a class that is called decides itself."""
    texts = ["He Go to School, é ÀB 中文 x", "Abc  def's"]
    saved = read_json(family_folder(tmp_path / "whole", family, trained(family)) / "tokenizer.json")
    other = {"lowercase": False, "clean_text": True, "strip_accents": False, "handle_chinese_chars": False}
    is_word_piece = saved["model"]["type"] == "WordPiece"
    saved["normalizer"] = {"type": "BertNormalizer"} | other if is_word_piece else {"type": "Lowercase"}
    name = SAMPLES[family].tokenizer
    for number, (config, settings) in enumerate(FOLDERS):
        contents = {"tokenizer": saved, "config": config, "tokenizer_config": settings}
        there = {file: content for file, content in contents.items() if content is not None}
        folder = model_folder(tmp_path / f"f{number}", **there)
        ours, theirs = (library.AutoTokenizer.from_pretrained(folder) for library in (minibert, transformers))
        assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]
        assert BertTokenizer.from_files(locate(folder))(texts)["input_ids"] == theirs(texts)["input_ids"]
        assert ours.do_lower_case == (not is_word_piece)
        if name in CLASSES.values():
            ours, theirs = (getattr(library, name).from_pretrained(folder) for library in (minibert, transformers))
            assert {**ours(texts)} == {**theirs(texts, return_token_type_ids="token_type_ids" in ours(texts))}
            assert isinstance(ours, getattr(minibert, name))


@pytest.mark.parametrize("family", sorted({*WITH_VOCABULARY} & {*OTHERS}))
def test_a_vocabulary_alone_is_that_of_the_class_that_is_called(tmp_path: Path, family: str) -> None:
    folder = family_folder(tmp_path, family, trained(family), vocabulary=True)
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    ours, theirs = (getattr(library, CLASSES[family]).from_pretrained(folder) for library in (minibert, transformers))
    for pairs in (None, AWKWARD_TEXTS[::-1]):
        assert {**ours(AWKWARD_TEXTS, pairs)} == {**theirs(AWKWARD_TEXTS, pairs)}


CHARSMAP = base64.b64encode(struct.pack("<I", 4096) + bytes(4097)).decode()
"""A table of characters without an entry: the size of its trie, and the trie."""


@pytest.mark.parametrize(
    ("steps", "is_replaced"),
    [(["NFKC"], True), (["Precompiled", "Lowercase"], True), (["Precompiled", "Strip", "Replace"], False), ([], False)],
)
def test_a_normalizer_that_the_class_replaces_is_named(tmp_path: Path, steps: list[str], is_replaced: bool) -> None:
    """Files of SentencePiece have the steps of the third row, whose last two change nothing."""
    known = {
        "Precompiled": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
        "Strip": {"type": "Strip", "strip_left": False, "strip_right": True},
        "Replace": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    }
    folder = family_folder(tmp_path, "xlm-roberta", trained("xlm-roberta"))
    normalizer = {"type": "Sequence", "normalizers": [known.get(step, {"type": step}) for step in steps]}
    change_json(folder / "tokenizer.json", normalizer=normalizer)
    with warnings.catch_warnings(record=True, action="always") as told:
        BertTokenizer.from_pretrained(folder)
    assert [str(folder / "tokenizer.json") in str(one.message) for one in told] == [True] * is_replaced


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_the_scores_of_pieces_are_those_of_the_file(tmp_path: Path, family: str) -> None:
    """The library reads the second of these scores one rounding off, and splits "aaa..." in another way then."""
    pieces = [(name, 0.0) for name in ROBERTA_TOKENS] + [("▁", -2.6), ("a" * 15, -6.820787407160676)]
    trained = Tokenizer(Unigram([*pieces, ("a" * 14, -7.2059394371902155), ("a", -50.0)], unk_id=3))
    ours, theirs = load(family_folder(tmp_path, family, trained))
    texts = ["a" * length for length in range(90, 250)]
    assert compare(ours, theirs, texts) == len(texts)


def test_an_empty_token_in_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = {name: place for place, name in enumerate([*BERT_TOKENS, "", "a"])}
    ours, theirs = load(family_folder(tmp_path, "bert", Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))))
    assert compare(ours, theirs, ["a", "", "b"]) == 3


def test_files_that_are_not_enough(tmp_path: Path) -> None:
    folder = family_folder(tmp_path / "roberta", "roberta", trained("roberta"), vocabulary=True)
    (folder / "merges.txt").unlink()
    for content, word in (
        ('{"a": "b"}', "merges.txt"),
        ("[]", "merges.txt"),
        (None, "neither tokenizer.json nor vocab.json"),
    ):
        if content is None:
            (folder / "vocab.json").unlink()
        with pytest.raises(ModelFormatError, match=word):
            BertTokenizer.from_pretrained(folder)
    folder = family_folder(tmp_path / "xlm", "xlm-roberta", trained("xlm-roberta"))
    (folder / "tokenizer.json").rename(folder / "sentencepiece.bpe.model")
    with pytest.raises(ModelFormatError, match=r"sentencepiece\.bpe\.model cannot be read.*save_pretrained"):
        BertTokenizer.from_pretrained(folder)
    folder = family_folder(
        tmp_path / "other", "electra", trained("electra"), vocabulary=True, tokenizer_class="OtherTokenizer"
    )
    with pytest.raises(ModelFormatError, match=r"has no tokenizer\.json"):
        BertTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("family", CLASSES)
def test_class_names(tmp_path: Path, family: str) -> None:
    """bert-score and others ask for the class, and give add_prefix_space= to a call, where transformers ignores it."""
    tokenizer, theirs = load(family_folder(tmp_path, family, trained(family)))
    for name in CLASSES.values():
        ours = getattr(minibert, name)
        assert ours is getattr(minibert, f"{name}Fast")
        assert issubclass(ours, BertTokenizer)
        if family != "xlm-roberta-xl":  # transformers reads its tokenizer.json as it is, whatever class the files name
            assert isinstance(tokenizer, ours) == (name in (type(theirs).__name__, "BertTokenizer"))
        again = ours.from_pretrained(tmp_path)  # the files decide, and not the name
        assert again.encode("a b", add_prefix_space=True) == theirs.encode("a b", add_prefix_space=True)


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
def test_special_tokens_in_texts_may_be_split(tmp_path: Path, family: str) -> None:
    ours, theirs = load(family_folder(tmp_path / "model", family, trained(family), split_special_tokens=True))
    assert theirs.tokenize(f"a {theirs.mask_token}") != ["a", theirs.mask_token]
    assert compare(ours, theirs, AWKWARD_TEXTS + MASKS) == len(AWKWARD_TEXTS + MASKS)
    ours.save_pretrained(tmp_path / "saved")
    again, reference = load(tmp_path / "saved")
    assert compare(again, reference, MASKS) == len(MASKS)


@pytest.mark.parametrize("family", ["bert", "roberta", "camembert", "mpnet"])
@pytest.mark.parametrize("entry", ["he", {"content": "he", "lstrip": True, "special": True, "__type": "AddedToken"}])
@pytest.mark.parametrize("inside", ["", "model_specific_special_tokens"])
def test_special_tokens_under_names_of_their_own(tmp_path: Path, family: str, entry: object, inside: str) -> None:
    if inside and isinstance(entry, dict):
        pytest.skip("transformers does not convert it")
    folder = family_folder(tmp_path / "model", family, trained(family))
    named = {"image_token": entry}
    change_json(folder / "tokenizer_config.json", add_bos_token=False, **({inside: named} if inside else named))
    ours, theirs = load(folder)
    texts = ["the other hehe  he", *AWKWARD_TEXTS]
    assert "he" in theirs.tokenize(texts[0])[1:-1]
    assert compare(ours, theirs, texts) == len(texts)
    assert sorted(ours.all_special_tokens) == sorted(theirs.all_special_tokens)
    ours.save_pretrained(tmp_path / "saved")
    again, reference = load(tmp_path / "saved")
    assert compare(again, reference, texts) == len(texts)


@pytest.mark.parametrize("family", ["gte", "new"])
def test_a_model_without_token_types(tmp_path: Path, family: str) -> None:
    """The English models of gte have BERT's tokenizer, and some have no token types."""
    folder = family_folder(tmp_path, "nomic_bert", trained("bert"))
    write_json(folder / "config.json", {"model_type": family, "type_vocab_size": 0, "max_position_embeddings": 8192})
    ours, theirs = load(folder)
    assert compare_all(ours, theirs, AWKWARD_TEXTS) > 60
    assert ours.model_max_length == 8192


@pytest.mark.filterwarnings("ignore:Most tokens")
def test_the_tokenizer_of_esm(tmp_path: Path) -> None:
    """In transformers it is in Python; `tokenize` gives the text of an unknown token there."""
    ours, theirs = load(family_folder(tmp_path / "m", "esm", trained("esm")))
    ours.save_pretrained(tmp_path / "saved")
    again = BertTokenizer.from_pretrained(tmp_path / "saved")
    saved = transformers.EsmTokenizer.from_pretrained(tmp_path / "saved")
    texts = [*AWKWARD_TEXTS, *MASKS, "mkvlaw", "<cls>mk v<mask>x-l.<eos>", "MKV"]
    for text, pair in [*((text, None) for text in texts), ("mkv", "la"), ("", "a")]:
        wanted = theirs(text, pair)
        for tokenizer in (ours, again, saved):
            assert dict(tokenizer(text, pair)) == dict(wanted), text
        assert ours.decode(wanted["input_ids"]) == theirs.decode(wanted["input_ids"])
    options = {"padding": True, "truncation": True, "max_length": 7}
    assert dict(ours(texts, **options)) == dict(theirs(texts, **options))
    assert ours.special_tokens_map == {name: getattr(theirs, name) for name in ours.special_tokens_map}
