"""An application of one's own: POST a list of texts to /vectors."""

from fastapi import FastAPI

from minibert import SentenceTransformer

app = FastAPI()
model = SentenceTransformer("all-MiniLM-L6-v2")


@app.post("/vectors")
def vectors(texts: list[str]) -> list[list[float]]:
    """Return a vector for each text. FastAPI calls a function without async in threads, so requests do not wait."""
    rows: list[list[float]] = model.encode(texts).tolist()
    return rows
