"""Clients of Node, which npm fetches when the tests run, against `minibert serve`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from tests.support.client_programs import TEXTS, report_version
from tests.support.outcomes import PATIENCE
from tests.support.served import served

pytestmark = pytest.mark.clients

CLIENTS = ("openai", "@huggingface/inference")

PROGRAM = """
import OpenAI from "openai";
import { InferenceClient } from "@huggingface/inference";
const [url, name, texts] = JSON.parse(process.argv[2]);
const failure = async (call) => {
  try { await call(); return "no error"; } catch (error) { return [error.constructor.name, String(error)]; }
};
const options = { baseURL: url + "/v1", maxRetries: 0 };
const openai = new OpenAI({ ...options, apiKey: "k" });
const wrong = new OpenAI({ ...options, apiKey: "x" });
const vectors = async (more) => {
  const made = await openai.embeddings.create({ model: name, input: texts, ...more });
  return made.data.map((one) => one.embedding);
};
const hub = new InferenceClient("k").endpoint(url);
const hubWrong = new InferenceClient("x").endpoint(url);
const answer = {
  base64: await vectors({}),
  floats: await vectors({ encoding_format: "float" }),
  hub: await hub.featureExtraction({ inputs: texts }),
  similarities: await hub.sentenceSimilarity({ inputs: { source_sentence: texts[0], sentences: texts } }),
  errors: [
    await failure(() => wrong.embeddings.create({ model: name, input: "a" })),
    await failure(() => openai.embeddings.create({ model: "gpt", input: "a" })),
    await failure(() => openai.embeddings.create({ model: name, input: "a", dimensions: 1000 })),
    await failure(() => hubWrong.featureExtraction({ inputs: texts })),
  ],
};
console.log(JSON.stringify(answer));
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Any:
    """Run the program once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module"}')
    install = [npm, "install", "--no-audit", "--no-fund", *CLIENTS]
    done = subprocess.run(install, cwd=folder, check=False, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        pytest.skip(f"npm cannot fetch the clients: {done.stderr.strip().splitlines()[-1:]}")
    for name in CLIENTS:
        about = json.loads((folder / "node_modules" / name / "package.json").read_text())
        report_version(f"{name} (npm)", about["version"])
    (folder / "program.js").write_text(PROGRAM)
    with served(str(minilm_folder), "--json-logs", errors=[], MINIBERT_SERVE_API_KEY="k") as running:
        given = json.dumps([running.url, minilm_folder.name, TEXTS])
        command = [node, "program.js", given]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["base64", "floats", "hub"])
def test_vectors_are_those_of_encode(answer: Any, minilm_folder: Path, name: str) -> None:
    expected = SentenceTransformer(minilm_folder).encode(TEXTS)
    np.testing.assert_array_equal(np.array(answer[name], dtype=np.float32), expected)


def test_similarities(answer: Any, minilm_folder: Path) -> None:
    vectors = SentenceTransformer(minilm_folder).encode(TEXTS)
    np.testing.assert_allclose(answer["similarities"], vectors @ vectors[0], atol=1e-6)


def test_errors_are_those_of_the_clients(answer: Any) -> None:
    names = [name for name, _ in answer["errors"]]
    assert names[:3] == ["AuthenticationError", "NotFoundError", "BadRequestError"]
    assert "Incorrect API key provided" in answer["errors"][0][1]
    assert "dimensions is 1000" in answer["errors"][2][1]
    assert names[3] == "InferenceClientProviderApiError"
