"""The recipes of parity/README.md, run as they are written there, where their compiler or library is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.contenders import export_onnx
from minibert import BertModel, parity
from tests.support.checkpoints import random_checkpoint
from tests.support.outcomes import PATIENCE

pytestmark = pytest.mark.clients

PAGE = Path(parity.__file__).with_name("README.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^\*\*([^*]+)\*\*.*?^```text\n(.*?)^```", PAGE.partition("\n## Recipes")[2], re.M | re.S))

# Where the recipe is a function: a program that reads the values of the states, and gives each to the function.
PROGRAMS = {
    "C++": (
        "dump.cpp",
        "#include <fstream>\n#include <string>\n#include <vector>\n",
        'int main() {{ std::ifstream in("values.bin", std::ios::binary); std::vector<float> x({size});\n'
        "for (int i = 0; i < {states}; i++) {{ in.read(reinterpret_cast<char *>(x.data()), 4 * {size});\n"
        'dump("hidden_states." + std::to_string(i), x.data(), x.size()); }} }}\n',
        (("g++", "-std=c++17", "-o", "port", "dump.cpp"), ("./port",)),
    ),
    "Rust without a crate": (
        "dump.rs",
        "",
        'fn main() {{ let bytes = std::fs::read("values.bin").unwrap();\n'
        "for (i, part) in bytes.chunks_exact(4 * {size}).enumerate() {{\n"
        "let x: Vec<f32> = part.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();\n"
        'dump(&format!("hidden_states.{{i}}"), &x).unwrap(); }} }}\n',
        (("rustc", "--edition", "2021", "-o", "port", "dump.rs"), ("./port",)),
    ),
    "Java": (
        "Port.java",
        "class Port {\n",
        "public static void main(String[] given) throws Exception {{\n"
        'var in = java.nio.ByteBuffer.wrap(java.nio.file.Files.readAllBytes(java.nio.file.Path.of("values.bin")))\n'
        ".order(java.nio.ByteOrder.LITTLE_ENDIAN).asFloatBuffer();\n"
        "for (int i = 0; i < {states}; i++) {{ var x = new float[{size}]; in.get(x);\n"
        'dump("hidden_states." + i, x); }} }} }}\n',
        (("java", "Port.java"),),
    ),
    "Go": (
        "dump.go",
        'package main\n\nimport (\n"encoding/binary"\n"fmt"\n"os"\n)\n\n',
        'func main() {{ in, _ := os.Open("values.bin")\nfor i := 0; i < {states}; i++ {{ x := make([]float32, {size})\n'
        "binary.Read(in, binary.LittleEndian, x)\n"
        'if err := dump(fmt.Sprintf("hidden_states.%d", i), x); err != nil {{ panic(err) }} }} }}\n',
        (("go", "run", "dump.go"),),
    ),
    "C#": (
        "Port.cs",
        "using System;\nusing System.IO;\nclass Port {\n",
        'static void Main() {{ var all = File.ReadAllBytes("values.bin");\n'
        "for (int i = 0; i < {states}; i++) {{ var x = new float[{size}];\n"
        'Buffer.BlockCopy(all, 4 * {size} * i, x, 0, 4 * {size}); Dump($"hidden_states.{{i}}", x); }} }} }}\n',
        (("mcs", "Port.cs"), ("mono", "Port.exe")),
    ),
}


@pytest.fixture
def port(tmp_path: Path) -> Path:
    """Make a folder with a model, the probe, and the values that a right port would compute."""
    model = BertModel.from_pretrained(random_checkpoint(tmp_path / "model"))
    made = parity.probe(model)
    made.save(tmp_path / "probe")
    states = [np.asarray(state, np.float32) for state in model(**made.inputs).hidden_states]
    (tmp_path / "values.bin").write_bytes(b"".join(state.tobytes() for state in states))
    return tmp_path


def run(folder: Path, command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def verdict(port: Path, dump: str, raw: dict[str, tuple[int, ...]] | None = None) -> str:
    model = BertModel.from_pretrained(port / "model")
    return parity.check(model, port / dump, port / "probe" / "probe.json", raw=raw, diagnosis=False).verdict


def test_every_recipe_is_run_here_or_says_that_it_was_not_run() -> None:
    run_here = {*PROGRAMS, "Python: transformers", "Python: onnxruntime", "JavaScript: @huggingface/transformers"}
    assert run_here <= set(RECIPES)
    for name in set(RECIPES) - run_here:
        assert "(not run" in PAGE.partition(f"**{name}**")[2].partition("```")[0], name


@pytest.mark.parametrize("language", list(PROGRAMS))
def test_a_function_writes_numbers_that_are_read_bit_for_bit(language: str, port: Path) -> None:
    file, before, after, commands = PROGRAMS[language]
    for command in commands:
        if not command[0].startswith("./") and shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
    shape = np.load(port / "probe" / "probe.npz")["input_ids"].shape
    hidden, states = 24, 3
    size = shape[0] * shape[1] * hidden
    (port / file).write_text(before + RECIPES[language] + after.format(size=size, states=states), encoding="utf-8")
    (port / "dump").mkdir()
    for command in commands:
        run(port, command)
    raw = {f"hidden_states.{i}": (*shape, hidden) for i in range(states)}
    assert verdict(port, "dump", raw) == "bits"


def test_transformers(port: Path) -> None:
    run(port, (sys.executable, "-c", "MODEL = 'model'\n" + RECIPES["Python: transformers"]))
    assert verdict(port, "dump.safetensors") == "float32"


def test_onnxruntime(port: Path) -> None:
    pytest.importorskip("onnx", reason="the export needs onnx (pip install onnx)")
    pytest.importorskip("onnxruntime", reason="the recipe needs onnxruntime (pip install onnxruntime)")
    export_onnx(port / "model", port)
    run(port, (sys.executable, "-c", RECIPES["Python: onnxruntime"]))
    assert verdict(port, "dump.npz") == "float32"


def test_javascript(port: Path) -> None:
    """--ignore-scripts, because a script of onnxruntime-node fetches libraries for GPUs."""
    pytest.importorskip("onnx", reason="the export needs onnx (pip install onnx)")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    fetched = (npm, "install", "--ignore-scripts", "--no-save", "@huggingface/transformers")
    done = subprocess.run(fetched, cwd=port, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"@huggingface/transformers cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    site = port / "models" / "model"
    (site / "onnx").mkdir(parents=True)
    shutil.copy(port / "model" / "config.json", site)
    export_onnx(port / "model", site / "onnx")
    local = f"env.allowRemoteModels = false; env.localModelPath = {json.dumps(str(port / 'models'))};"
    before = f'import {{ env }} from "@huggingface/transformers"; {local} const MODEL = "model";\n'
    recipe = RECIPES["JavaScript: @huggingface/transformers"]
    (port / "port.mjs").write_text(before + recipe, encoding="utf-8")
    run(port, ("node", "port.mjs"))
    assert verdict(port, "dump.json") == "float32"
