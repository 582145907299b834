"""TransformerLens' names of intermediate values: each alias of the table compared with the value of its own forward."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from minibert import BertForPreTraining, exact
from minibert.trace.table import TWO_MEANINGS
from tests.support.head_models import SIZES, make_model
from tests.support.report import REPORT

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("transformer_lens") is None, reason="transformer-lens is not installed"),
]

_PRELUDE = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch, transformer_lens
from transformers import BertForPreTraining
folder, source, result = sys.argv[1:]
torch.set_grad_enabled(False)
theirs = BertForPreTraining.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
inputs = {name: torch.as_tensor(value) for name, value in np.load(source).items()}
ids, types, mask = (inputs[name] for name in ("input_ids", "token_type_ids", "attention_mask"))
config = theirs.config
def save(cache):
    np.savez(result, version=np.array(transformer_lens.__file__), **{k: v.numpy() for k, v in cache.items()})
"""
# HookedEncoder is in versions 1 to 3, TransformerBridge in 3 and later.
_PROGRAMS = {
    "HookedEncoder": """
try:
    from transformer_lens import HookedEncoder
except (ImportError, AttributeError):
    sys.exit(3)
from transformer_lens.pretrained.weight_conversions.bert import convert_bert_weights
sizes = dict(n_layers=config.num_hidden_layers, d_model=config.hidden_size, n_heads=config.num_attention_heads,
             d_head=config.hidden_size // config.num_attention_heads, d_mlp=config.intermediate_size,
             n_ctx=config.max_position_embeddings, d_vocab=config.vocab_size, act_fn="gelu", eps=config.layer_norm_eps,
             attention_dir="bidirectional", dtype=torch.float64, normalization_type="LN")
model = HookedEncoder(sizes, move_to_device=False).double()
model.load_state_dict(convert_bert_weights(theirs, model.cfg), strict=False)
save(model.run_with_cache(ids, token_type_ids=types, one_zero_attention_mask=mask)[1])
""",
    "TransformerBridge": """
from transformer_lens import model_bridge
model = model_bridge.TransformerBridge.boot_transformers(folder, hf_model=theirs, dtype=torch.float64)
save(model.run_with_cache(ids, token_type_ids=types, attention_mask=mask)[1])
""",
}


@pytest.mark.parametrize("kind", _PROGRAMS)
def test_every_alias_has_the_value_of_transformer_lens(kind: str, tmp_path: Path) -> None:
    """In float64, on a random checkpoint; padding is on the right, because TransformerBridge makes positions of it."""
    folder = make_model(tmp_path / "model", "BertForPreTraining", type_vocab_size=2)
    generator = np.random.default_rng(0)
    mask = np.ones((4, 11), dtype=np.int64)
    mask[1, 7:], mask[2, 3:] = 0, 0
    inputs = {
        "input_ids": generator.integers(SIZES["vocab_size"], size=mask.shape),
        "token_type_ids": generator.integers(2, size=mask.shape),
        "attention_mask": mask,
    }
    np.savez(tmp_path / "inputs.npz", **inputs)
    paths = [str(folder), str(tmp_path / "inputs.npz"), str(tmp_path / "values.npz")]
    command = [sys.executable, "-c", _PRELUDE + _PROGRAMS[kind], *paths]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode == 3:
        pytest.skip(f"this version of TransformerLens does not have {kind}")
    assert done.returncode == 0, done.stderr
    trace = exact.forward(BertForPreTraining.from_pretrained(folder), **inputs)
    values = np.load(tmp_path / "values.npz")
    meanings = {name: pair[kind == "TransformerBridge"] for name, pair in TWO_MEANINGS.items()}
    compared, two = [], set()
    for name in values.files:
        template = re.sub(r"^blocks\.\d+", "blocks.{i}", name)
        if template in meanings:
            two.add(template)
            ours = trace[meanings[template].format(i=name.split(".")[1])]
            assert name not in trace
        elif name in trace:
            compared.append(name)
            ours = trace[name]
        else:
            continue
        found = np.broadcast_to(values[name], ours.shape)
        shown = mask.astype(bool)
        if ours.ndim == 2:  # of [CLS]
            shown = shown[:, 0]
        elif ours.shape[-2:] == (11, 11):
            shown = np.broadcast_to(shown[:, None, :, None] & shown[:, None, None, :], ours.shape)
        np.testing.assert_allclose(found[shown], ours[shown], rtol=0, atol=1e-12, err_msg=name)
    assert two == set(TWO_MEANINGS)
    assert "blocks.1.attn.hook_pattern" in compared
    kinds = {re.sub(r"\d+", "*", name) for name in compared}
    assert len(kinds) >= {"HookedEncoder": 14, "TransformerBridge": 34}[kind], sorted(kinds)
    without = [name for name in values.files if re.sub(r"^blocks\.\d+", "blocks.{i}", name) not in TWO_MEANINGS]
    others = sorted({re.sub(r"\d+", "*", name) for name in without if name not in trace} - {"version"})
    REPORT.append(f"TransformerLens, {kind}: {len(kinds)} kinds of aliases have its values; not names: {others}")
