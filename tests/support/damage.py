"""Random damage of JSON and of bytes, for the tests of hostile files; hypothesis chooses and repeats the cases."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Values that replace one value of a JSON file; a large int is below what Python refuses to print.
_leaves = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 7, 1.5, 2**31, 2**32 - 1, 2**63, 10**30, 1e308, 1e-9, -0.5]),
    st.sampled_from(["", "a", "\u0000", "\ud800", "../..", "nan", "BertModel", "Dense", "[UNK]", "x" * 70_000]),
    st.sampled_from(["F32", "F64", "I64", "BOOL", "F8_E4M3", float("nan"), float("inf")]),
)
values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
chances = st.integers(0, 2**64 - 1).map(random.Random)


def sampled(most: int) -> Any:
    return settings(
        max_examples=most, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


def both(most: int) -> Any:
    """The parameter of a list: a sample of this length, and 50 times as many cases under `slow`."""
    return pytest.mark.parametrize("most", [most, pytest.param(50 * most, marks=pytest.mark.slow)])


def damaged_json(data: bytes, chance: random.Random, value: Any) -> bytes:
    """Replace, change, delete, repeat or rename one value somewhere in a JSON file, or damage its bytes."""
    if chance.random() < 0.2:
        return damaged_bytes(data, chance)
    whole = json.loads(data)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(whole)
    node, key = chance.choice(places) if places else (None, None)
    kind = chance.random()
    if node is None or kind < 0.05:
        whole = value
    elif kind < 0.2:
        del node[key]
    elif isinstance(node, dict) and kind < 0.3:
        node[str(key) + "x"] = node.pop(key)
    elif type(node[key]) is int and kind < 0.7:
        node[key] = chance.choice([node[key] + 1, node[key] - 1, 2 * node[key] + 1, -node[key] - 1, node[key] + 2**40])
    elif isinstance(node[key], list) and kind < 0.7:
        chance.shuffle(node[key]) if chance.random() < 0.5 else node[key].append(chance.choice([0, 1, value]))
    else:
        other, place = chance.choice(places) if kind < 0.75 else ({0: value}, 0)
        node[key] = json.loads(json.dumps(other[place]))
    return json.dumps(whole).encode()


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """Cut bytes, flip bits, or insert bytes."""
    place = chance.randrange(len(data) + 1)
    how = chance.randrange(4)
    if how == 0:
        return data[:place]
    if how == 1:
        return data[:place] + bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9))) + data[place:]
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed))
        changed[at] = chance.choice([changed[at] ^ 1 << chance.randrange(8), *b'0123456789,:[]{}" abFI'])
    return bytes(changed)
