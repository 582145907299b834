"""`SentenceTransformer`: one vector per text; pooling, prompts, the modules after the BERT model."""
