"""The contacts of a protein beside transformers in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from minibert import ModelFormatError, inside, load
from tests.support.families import in_float64, make


def test_contacts_are_those_of_transformers(tmp_path: Path) -> None:
    """Also beside padding, which changes no bit, and where all is padding."""
    for kind in ("Model", "ForMaskedLM"):
        folder = tmp_path / kind
        theirs = make(folder, "esm", kind)
        with torch.no_grad():
            theirs.base_model.contact_head.regression.weight.mul_(20)
        theirs.save_pretrained(folder)
        theirs, ours = in_float64(theirs), load(folder)
        theirs.set_attn_implementation("eager")
        ids = np.random.default_rng(0).integers(4, 33, (3, 20))
        mask = np.ones_like(ids)
        ids[:, 0], ids[0, -1], ids[1, 11] = 0, 2, 2
        ids[1, 12:], mask[1, 12:] = 1, 0
        found = inside.contacts(ours, folder, ids, mask)
        with torch.no_grad():
            expected = theirs.predict_contacts(torch.as_tensor(ids), torch.as_tensor(mask)).numpy()
        assert (found.shape, found.dtype) == ((3, 18, 18), np.float32)
        assert np.ptp(expected) > 0.1
        np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], rtol=0, atol=2e-5)
        np.testing.assert_allclose(found[1, :10, :10], expected[1, :10, :10], rtol=0, atol=2e-5)
        np.testing.assert_array_equal(found[1:2, :10, :10], inside.contacts(ours, folder, ids[1:2, :12]))
        assert not found[1, 10:].any()
        mask[1] = 0
        assert not inside.contacts(ours, folder, ids, mask)[1].any()


def test_a_checkpoint_without_the_head_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "esm")
    ours, path = load(tmp_path), tmp_path / "model.safetensors"
    save_file({name: array for name, array in load_file(path).items() if "contact" not in name}, path)
    with pytest.raises(ModelFormatError, match="contact_head"):
        inside.contacts(ours, tmp_path, [[0, 5, 6, 2]])
