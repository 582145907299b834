"""Runtimes of other languages for `benchmarks.ports`: JavaScript by npm and Node, C++ by llama-cpp-python.

Node needs a folder in which ``npm install --ignore-scripts @huggingface/transformers onnxruntime-web`` was run; the
environment variable ``NODE_FOLDER`` names it. ``--ignore-scripts``, because a script fetches libraries for GPUs.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.runtimes import Dump, Inputs, LeftOutError, Runtime, exported, shown_rows
from minibert import BertModel
from minibert.parity.dumps import read_dump

# --- JavaScript -------------------------------------------------------------------------------------------------------

_TENSORS = """
import { readFileSync, writeFileSync } from "node:fs";
const [folder, dtype] = process.argv.slice(2);
const probe = JSON.parse(readFileSync("inputs.json"));
const tensors = (make) => Object.fromEntries(Object.entries(probe).map(([name, rows]) =>
  [name, make("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length])]));
const write = (output) => writeFileSync("dump.json", JSON.stringify(Object.fromEntries(
  Object.entries(output).map(([name, { dims, type, data }]) => [name, { dims, type, data: Array.from(data) }]))));
"""
_TRANSFORMERS = f"""
import {{ AutoModel, Tensor, env }} from "@huggingface/transformers";
{_TENSORS}
env.allowRemoteModels = false;
env.localModelPath = folder;
const model = await AutoModel.from_pretrained("model", {{ dtype }});
write(await model(tensors((type, data, dims) => new Tensor(type, data, dims))));
"""
_WEB = f"""
import * as ort from "onnxruntime-web";
{_TENSORS}
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(folder + "/model/onnx/model.onnx");
write(await session.run(tensors((type, data, dims) => new ort.Tensor(type, data, dims))));
"""


def _node(program: str, dtype: str = "fp32") -> Runtime:
    def run(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
        top = Path(os.environ.get("NODE_FOLDER", "."))
        node = shutil.which("node")
        if node is None or not (top / "node_modules").is_dir():
            raise LeftOutError("NODE_FOLDER does not name a folder with node_modules")
        site = _site(folder, scratch, dtype)
        if not (site / "node_modules").exists():
            (site / "node_modules").symlink_to((top / "node_modules").absolute())
        (site / "run.mjs").write_text(program, encoding="utf-8")
        given = {name: np.asarray(value).tolist() for name, value in inputs.items()}
        (site / "inputs.json").write_text(json.dumps(given), encoding="utf-8")
        command = [node, "run.mjs", str(site), dtype]
        done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise LeftOutError(next((line for line in done.stderr.splitlines() if "Error" in line), "node failed"))
        return read_dump(site / "dump.json")

    return run


def _site(folder: Path, scratch: Path, dtype: str) -> Path:
    """Lay a model out as @huggingface/transformers expects it; return the folder that holds "model"."""
    site = scratch / "node"
    files = site / "model" / "onnx"
    files.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "config.json", site / "model" / "config.json")
    graph, small = files / "model.onnx", files / "model_quantized.onnx"
    if not graph.is_file():
        shutil.copy(exported(folder, scratch), graph)
    if dtype == "q8" and not small.is_file():
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(graph, small)
    return site


# --- llama.cpp --------------------------------------------------------------------------------------------------------

_SPECIAL = {"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "bos", "[SEP]": "sep", "[MASK]": "mask"}


def write_gguf(folder: Path, path: Path, kind: str) -> None:
    """Write a checkpoint as a GGUF file, with matrices in float32 ("f32") or in float16 ("f16")."""
    import gguf

    config = BertModel.from_pretrained(folder, backend="numpy").config
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("port")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(config.type_vocab_size)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words += [f"[unused {i}]" for i in range(len(words), config.vocab_size)]
    writer.add_tokenizer_model("bert")
    writer.add_token_list([word[2:] if word.startswith("##") else f"\u2581{word}" for word in words])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    for word, name in _SPECIAL.items():
        getattr(writer, f"add_{name}_token_id")(words.index(word))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config.num_hidden_layers)
    for name, array in load_file(folder / "model.safetensors").items():
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is not None and name.endswith((".weight", ".bias")):  # there is none for the pooler
            # Only these are stored in float16 by convert_hf_to_gguf.py too.
            small = kind == "f16" and array.ndim == 2 and "position" not in name and "token_type" not in name
            writer.add_tensor(to, array.astype(np.float16 if small else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _llama(kind: str) -> Runtime:
    """Run llama.cpp on the visible tokens of each row, at their positions; its graph tells all values that it names."""

    def run(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
        import llama_cpp

        path = scratch / f"{kind}.gguf"
        if not path.is_file():
            write_gguf(folder, path, kind)
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        loaded = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not loaded:
            raise LeftOutError("llama.cpp cannot load the file")
        positions = np.broadcast_to(np.arange(np.shape(inputs["input_ids"])[1]), np.shape(inputs["input_ids"]))
        rows = zip(shown_rows(inputs, "input_ids"), shown_rows({**inputs, "p": positions}, "p"), strict=True)
        found = [_llama_row(llama_cpp, loaded, ids, at) for ids, at in rows]
        llama_cpp.llama_model_free(loaded)
        return {name: [row[name] for row in found] for name in found[0]}

    return run


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(level: int, text: bytes, data: Any) -> None:
    """Print nothing."""


def _llama_row(llama_cpp: Any, loaded: Any, ids: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    ggml = _ggml(llama_cpp)

    def keep(tensor: int, ask: bool, data: Any) -> bool:
        name = ggml.ggml_get_name(tensor).decode()
        if not name.startswith(("inp_", "Qcur", "Kcur", "Vcur", "kqv_out", "ffn_", "result_")):
            return not ask
        size = ggml.ggml_nbytes(tensor)
        if not ask and size % (4 * len(ids)) == 0 and ggml.ggml_is_contiguous(tensor):
            values = np.empty(size // 4, np.float32)
            ggml.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, size)
            found[name] = values.reshape(len(ids), -1)
        return True

    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 512
    settings.embeddings, settings.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_NONE
    settings.flash_attn_type = 0  # off: with it, keys and values are float16
    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(keep)
    settings.cb_eval = ctypes.cast(callback, type(settings.cb_eval))
    context = llama_cpp.llama_init_from_model(loaded, settings)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, (id, position) in enumerate(zip(ids.tolist(), positions.tolist(), strict=True)):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = id, position, 1, 0, 1
    code = llama_cpp.llama_encode(context, batch)
    width = llama_cpp.llama_model_n_embd(loaded)
    if code == 0:
        states = [llama_cpp.llama_get_embeddings_ith(context, i)[:width] for i in range(len(ids))]
        found["last_hidden_state"] = np.array(states, np.float32)
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    if code:
        raise LeftOutError(f"llama_encode returned {code}")
    return found


def _ggml(llama_cpp: Any) -> Any:
    """Load the library of tensors that comes with llama.cpp, and declare the functions that are used."""
    library = next(Path(llama_cpp.__file__).parent.glob("lib/*ggml-base*"))
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_get_name.restype, ggml.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    ggml.ggml_nbytes.restype, ggml.ggml_nbytes.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    ggml.ggml_is_contiguous.restype, ggml.ggml_is_contiguous.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    ggml.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    ggml.ggml_backend_tensor_get.restype = None
    return ggml


FOREIGN_RUNTIMES: dict[str, Runtime] = {
    "@huggingface/transformers, fp32": _node(_TRANSFORMERS),
    "@huggingface/transformers, q8": _node(_TRANSFORMERS, "q8"),
    "onnxruntime-web": _node(_WEB),
    "llama.cpp, f32": _llama("f32"),
    "llama.cpp, f16": _llama("f16"),
}
"""The runtimes of other languages, by name."""
