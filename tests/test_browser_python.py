"""Python in the browser: Pyodide, which is CPython in WebAssembly, started by Node.

The variable MINIBERT_PYODIDE is a folder with Pyodide and its wheel of NumPy. The package of npm does not have that
wheel; a full release of Pyodide does, and so does the folder open_webui/frontend/pyodide of the wheel
open-webui==0.12.4, from which nothing else is used.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel
from minibert.bert.tiny import Bert
from minibert.cli import main
from tests.support.browser import open_browser
from tests.support.outcomes import ROOT

PYODIDE = os.environ.get("MINIBERT_PYODIDE", "")

TEXT = "A café by the river."
RIGHT_GELU = "def gelu(x):\n    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))"
WRONG_GELU = "def gelu(x):\n    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))"

PROGRAM = """
import { pathToFileURL } from "node:url";
const [home, model, code] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(home + "/pyodide.mjs"));
const python = await loadPyodide({ indexURL: home + "/" });
await python.loadPackage("numpy", { messageCallback: () => {} });
for (const [place, root] of [["/model", model], ["/code", code]]) {
  python.FS.mkdirTree(place);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, place);
}
console.log(python.runPython(`
import json, sys
from pathlib import Path
sys.path.insert(0, "/code")
sys.dont_write_bytecode = True
from minibert import BertModel
from minibert.bert.tiny import Bert
ids = [[2, 5, 7, 3]]
model = BertModel.from_pretrained("/model", backend="numpy")
states = [state[0].tolist() for state in model(input_ids=ids).hidden_states]
tiny = Bert(Path("/model"))
tokens = [next(token for token, i in tiny.vocabulary.items() if i == id) for id in ids[0]]
json.dumps([states, [state.tolist() for state in tiny.hidden_states(tokens)]])
`));
"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files to pages of any origin."""

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.mark.skipif(
    not (shutil.which("node") and PYODIDE), reason="needs Node and MINIBERT_PYODIDE, a folder of Pyodide"
)
def test_numpy_backend_and_tiny_in_webassembly(minilm_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "program.mjs").write_text(PROGRAM, encoding="utf-8")
    command = ["node", str(tmp_path / "program.mjs"), str(Path(PYODIDE).resolve()), str(minilm_folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = BertModel.from_pretrained(minilm_folder)(input_ids=[[2, 5, 7, 3]]).hidden_states
    for states in json.loads(done.stdout.splitlines()[-1]):
        assert len(states) == len(expected) == 7
        for state, right in zip(states, expected, strict=True):
            np.testing.assert_allclose(np.array(state), right[0], atol=1e-5)


@pytest.mark.browser
@pytest.mark.skipif(not PYODIDE, reason="needs MINIBERT_PYODIDE, a folder of Pyodide")
def test_page_computes_hidden_states_and_checks_functions(minilm_folder: Path, tmp_path: Path) -> None:
    handler = functools.partial(QuietHandler, directory=PYODIDE)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, open_browser() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = tmp_path / "bert.html"
        assert main(["learn", "page", str(path), "--pyodide", f"http://127.0.0.1:{server.server_port}"]) == 0
        page = browser.new_page()
        page.set_default_timeout(300_000)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        names = ("config.json", "tokenizer_config.json", "vocab.txt", "model.safetensors")
        page.set_input_files("#files", [minilm_folder / name for name in names])
        page.wait_for_selector("#compute:enabled")
        page.fill("#text", TEXT)
        page.click("#compute")
        page.wait_for_selector("#states td")
        rows = [row.split() for row in page.locator("#states tr").all_inner_texts()]
        answers = [check(page, function) for function in (RIGHT_GELU, WRONG_GELU, "def gelu(x:")]
        server.shutdown()
    own = (f"http://127.0.0.1:{server.server_port}/", "file:", "data:", "blob:")
    assert all(url.startswith(own) for url in requests)
    tiny = Bert(minilm_folder)
    states = [state[0] for state in tiny.hidden_states(tiny.tokenize(TEXT))]
    for row, right in zip(rows, [*states, tiny.vector(tiny.tokenize(TEXT))], strict=True):
        np.testing.assert_allclose([float(number) for number in row[-5:-1]], right[:4], atol=1.1e-6)
    assert "right" in answers[0].split()
    assert "Cause: " in answers[1]
    assert "SyntaxError" in answers[2]


def check(page: Any, function: str) -> str:
    """Check the function gelu in the page, with its cause."""
    page.fill("#code", f"import math\nimport numpy as np\n\n{function}\n")
    page.select_option("#exercise", "gelu")
    page.check("#more")
    page.click("#check")
    page.wait_for_function("!['', 'Checking ...'].includes(document.getElementById('result').textContent)")
    return str(page.locator("#result").inner_text())
