"""`BertModel` and the parts around it: outputs, the embedding layer, checks of inputs, loading, the choice of ops."""

__all__: list[str] = []
