"""What users call on ids: `BertModel`, its outputs, its embedding layer, the choice of ops."""

__all__: list[str] = []
