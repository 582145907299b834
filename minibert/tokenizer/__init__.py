"""Text -> token ids, offsets and word ids; long texts in pieces and in windows."""
