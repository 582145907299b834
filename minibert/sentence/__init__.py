"""`SentenceTransformer`: one vector per text; pooling, prompts, the modules behind the model."""

__all__: list[str] = []
