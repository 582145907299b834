#!/usr/bin/env bash
# qdrant-client 1.20.0 in its local mode, Fusion.RRF of dense and sparse vectors.
#
# Guess:  reciprocal rank fusion adds 1 / (60 + rank), as in its paper (Cormack et al. 2009) and in other libraries: a
#         text that both searches have among the first comes before one that a single search has.
# Seen:   1 / (2 + place), places from 0: the first of one search (0.500) comes before the fourth of both (0.400). With
#         60 it is behind it. Thresholds on the score differ, too. Rrf(k=60) gives the order of the paper.
# Output seen on 2026-11-29 (ids and scores; 0 is first in the dense search only, 3 is fourth in both):
#         Fusion.RRF: 0 0.500, 4 0.500, 3 0.400, 1 0.333, 5 0.333, 2 0.250, 6 0.250
#         Rrf(k=60):  3 0.032, 0 0.017, 4 0.017, 1 0.016, 5 0.016, 2 0.016, 6 0.016
# Who meets it: who moves a hybrid search (MiniLM and SPLADE, for example) to or from Qdrant.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet qdrant-client==1.20.0
cat > "$folder/run.py" << 'EOF'
from qdrant_client import QdrantClient, models

dense = [[1, 0.1 * n] for n in range(7)]  # nearest to (1, 0): 0, 1, 2, 3
sparse = [0.1, 0.2, 0.3, 0.6, 0.9, 0.8, 0.7]  # the best: 4, 5, 6, 3
client = QdrantClient(":memory:")
client.create_collection(
    "texts",
    vectors_config={"dense": models.VectorParams(size=2, distance=models.Distance.COSINE)},
    sparse_vectors_config={"sparse": models.SparseVectorParams()},
)
client.upsert("texts", [
    models.PointStruct(id=n, vector={"dense": dense[n], "sparse": models.SparseVector(indices=[0], values=[sparse[n]])})
    for n in range(7)
])
both = [
    models.Prefetch(query=[1.0, 0.0], using="dense", limit=4),
    models.Prefetch(query=models.SparseVector(indices=[0], values=[1.0]), using="sparse", limit=4),
]


def search(query):
    return {point.id: point.score for point in client.query_points("texts", prefetch=both, query=query).points}


plain, sixty = search(models.FusionQuery(fusion=models.Fusion.RRF)), search(models.RrfQuery(rrf=models.Rrf(k=60)))
for name, scores in (("Fusion.RRF:", plain), ("Rrf(k=60): ", sixty)):
    print(name, ", ".join(f"{number} {score:.3f}" for number, score in scores.items()))
assert plain[0] == 0.5 and plain[0] > plain[3] and next(iter(sixty)) == 3, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
