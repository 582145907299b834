"""Tasks: texts in, labels, words, entities or answers out. `minibert.pipeline` makes them."""
