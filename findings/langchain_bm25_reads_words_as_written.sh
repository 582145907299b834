#!/usr/bin/env bash
# langchain-community 0.4.2, BM25Retriever with its defaults, rank-bm25 0.2.2.
#
# Guess:  a keyword search finds a word whatever its case, and with a comma behind it; texts without a word of the query
#         are last, or left out.
# Seen:   the words are text.split(): "Stocks" is not "stocks", "Cats?" not "cats". If nothing matches, the answer is
#         the last texts of the list, as if they were hits; in an ensemble with vectors they get the rank of hits.
# Output seen on 2026-11-29 (query: first hit):
#         defaults: stocks: A dog barks.
#         defaults: London: A dog barks.
#         defaults: Cats?: A dog barks.
#         defaults: cats: A dog barks.
#         words: stocks: Stocks fell sharply in London.
#         words: London: Stocks fell sharply in London.
#         words: Cats?: The cats, three of them, sleep all day.
#         words: cats: The cats, three of them, sleep all day.
# Who meets it: who builds a hybrid search with EnsembleRetriever. preprocess_func= takes another function.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet langchain-community==0.4.2 rank-bm25==0.2.2
cat > "$folder/run.py" << 'EOF'
import re

from langchain_community.retrievers import BM25Retriever

texts = ["Stocks fell sharply in London.", "The cats, three of them, sleep all day.", "Rain is near.", "A dog barks."]
queries = ["stocks", "London", "Cats?", "cats"]
hits = {}
for name, options in (("defaults", {}), ("words", {"preprocess_func": lambda text: re.findall(r"\w+", text.lower())})):
    retriever = BM25Retriever.from_texts(texts, k=1, **options)
    hits[name] = [retriever.invoke(query)[0].page_content for query in queries]
    for query, hit in zip(queries, hits[name]):
        print(f"{name}: {query}: {hit}")
changed = "the behaviour has changed"
assert hits["defaults"] == [texts[-1]] * 4 and hits["words"] == [texts[0], texts[0], texts[1], texts[1]], changed
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
