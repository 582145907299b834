"""sentence-transformers behind FastAPI as most people write it: a plain function, which FastAPI calls in its threads.

python -m benchmarks.plain_service FOLDER PORT THREADS
"""

from __future__ import annotations

import sys


def main() -> None:
    """Serve POST /embed {"inputs": [...]} until the process is ended."""
    import fastapi
    import torch
    import uvicorn
    from sentence_transformers import SentenceTransformer

    folder, port, threads = sys.argv[1:4]
    torch.set_num_threads(int(threads))
    model = SentenceTransformer(folder, device="cpu")
    app = fastapi.FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {}

    @app.post("/embed")
    def embed(body: dict[str, list[str]]) -> list[list[float]]:
        return model.encode(body["inputs"]).tolist()

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
