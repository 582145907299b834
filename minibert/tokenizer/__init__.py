"""Text -> token ids, offsets, word ids; long texts and windows."""

__all__: list[str] = []
