"""Files of texts -> files of vectors, in bounded memory, resumable."""
