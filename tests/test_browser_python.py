"""Python in the browser: Pyodide, which is CPython in WebAssembly, started by Node.

The variable MINIBERT_PYODIDE is a folder with Pyodide and its wheel of NumPy. The package of npm does not have that
wheel; a full release of Pyodide does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from minibert import BertModel
from tests.support.outcomes import ROOT

PYODIDE = os.environ.get("MINIBERT_PYODIDE", "")

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
