"""What is recorded from a forward: the values of all families, beside a file that says which ones there are."""

from __future__ import annotations

from pathlib import Path

import minibert
from minibert.bert.families import FAMILIES
from minibert.bert.rows import HEADS, head_of
from minibert.trace.layout import Layout, Sizes
from minibert.trace.table import words_of

EXPECTED = Path(__file__).with_name("expected_values.txt")


def values() -> list[str]:
    """Return a line for each value of each family without a head, and of each head: name, shape, symbol and formula."""
    lines = []
    for family in FAMILIES.values():
        config = getattr(minibert, family.own_class("BertConfig"))(num_hidden_layers=3)
        for head in (None, *HEADS):
            if head in ("BertForPreTraining", "BertForNextSentencePrediction") and family.model_type != "bert":
                continue
            pooler = head is not None and head_of(family, head).pooled
            layout = Layout.of(Sizes.of(config, pooler=pooler, head=head))
            rows = layout.rows() if head is None else ((None, entry) for entry in (*layout.pooler, *layout.head))
            lines.append(family.model_type if head is None else family.own_class(head))
            lines += [f"  {entry.path.format(i=i)} {entry.shape} {entry.symbol} = {entry.formula}" for i, entry in rows]
    return lines


def test_the_values_of_all_families_are_those_of_the_file() -> None:
    """A new family adds its lines: `python -m tests.trace.test_layout` writes the file. Other lines do not change."""
    assert values() == EXPECTED.read_text(encoding="utf-8").splitlines()


def test_a_value_that_is_in_no_table_has_a_name() -> None:
    words = words_of("encoder.layer.{i}.attention.self.query_norm", "norm")
    assert (words.symbol, words.aliases, words.by_head) == ("query_norm", (), ())


if __name__ == "__main__":
    EXPECTED.write_text("\n".join(values()) + "\n", encoding="utf-8")
