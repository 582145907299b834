#!/usr/bin/env bash
# model2vec 0.10.0, duckdb 2.0.1, polars 2.1.0, sqlite-vec 0.1.9, lancedb 0.40.0, usearch 2.26.6.
#
# Guess:  a static model gives a zero vector for a text without a known word. By the cosine it is near to nothing, so a
#         search finds it last, or at distance 1, before the opposite. An undefined cosine is an error or sorts last.
# Seen:   DuckDB's cosine is NaN, and NaN is its largest number: ORDER BY ... DESC, as one writes for a similarity,
#         returns the empty text first. Polars sorts and top_k do the same. sqlite-vec's distance is NULL, which SQLite
#         sorts first; its virtual table puts the row between the hits. LanceDB leaves the row out, without a word.
#         usearch gives distance 1.
# Output seen on 2026-11-29:
#         model2vec, texts without a known word: [0.0, 0.0]
#         duckdb similarity   zero same near opposite
#         duckdb distance     same near opposite zero
#         polars similarity   zero same near opposite
#         sqlite-vec function zero same near opposite
#         sqlite-vec table    same zero near opposite
#         lancedb             same near opposite
#         usearch             same near zero opposite
# Who meets it: who stores vectors of static models; other models give [CLS] and [SEP] even for an empty text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet model2vec==0.10.0 duckdb==2.0.1 polars==2.1.0 sqlite-vec==0.1.9 apsw==3.54.1.0 \
    lancedb==0.40.0 usearch==2.26.6 numpy==2.4.6
cat > "$folder/run.py" << 'EOF'
import sys

import apsw
import duckdb
import lancedb
import numpy as np
import polars as pl
import sqlite_vec
from model2vec import StaticModel
from tokenizers import Tokenizer, models, pre_tokenizers
from usearch.index import Index

tokenizer = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1, "cat": 2}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
model = StaticModel(np.eye(3, 4, dtype=np.float32), tokenizer)
lengths = np.linalg.norm(model.encode(["", "☃ ☃"]), axis=1).tolist()
print("model2vec, texts without a known word:", lengths)

names = np.array(["same", "zero", "near", "opposite"])
vectors = np.array([[0.6, 0.8, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [-0.6, -0.8, 0, 0]], np.float32)
query, seen = vectors[0], {}

sql = duckdb.connect()
sql.execute("CREATE TABLE t (n TEXT, v FLOAT[4])")
sql.executemany("INSERT INTO t VALUES (?, ?)", [[name, vector.tolist()] for name, vector in zip(names, vectors)])
for what, order in (("similarity", "DESC"), ("distance", "ASC")):
    text = f"SELECT n FROM t ORDER BY array_cosine_{what}(v, ?::FLOAT[4]) {order}"
    seen[f"duckdb {what}"] = [row[0] for row in sql.execute(text, [query.tolist()]).fetchall()]
with np.errstate(invalid="ignore"):
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1)
frame = pl.DataFrame({"n": names.tolist(), "s": cosines})
seen["polars similarity"] = frame.sort("s", descending=True)["n"].to_list()
assert frame.top_k(1, by="s")["n"].to_list() == ["zero"], "the behaviour has changed"

lite = apsw.Connection(":memory:")
lite.enable_load_extension(True)
lite.load_extension(sqlite_vec.loadable_path())
lite.execute("CREATE VIRTUAL TABLE t USING vec0(v float[4] distance_metric=cosine)")
lite.executemany("INSERT INTO t(rowid, v) VALUES (?, ?)", [(i, v.tobytes()) for i, v in enumerate(vectors)])
for what, text in (("function", "ORDER BY vec_distance_cosine(v, ?)"), ("table", "WHERE v MATCH ? AND k = 4")):
    rows = lite.execute(f"SELECT rowid FROM t {text}", (query.tobytes(),))
    seen[f"sqlite-vec {what}"] = names[[row[0] for row in rows]].tolist()

table = lancedb.connect(sys.argv[1]).create_table("t", [{"n": n, "vector": v} for n, v in zip(names, vectors)])
seen["lancedb"] = [row["n"] for row in table.search(query).distance_type("cosine").limit(4).to_list()]
index = Index(ndim=4, metric="cos")
index.add(np.arange(4), vectors)
seen["usearch"] = names[index.search(query, 4).keys.astype(int)].tolist()
for store, order in seen.items():
    print(f"{store:19s}", *order)
places = {store: order.index("zero") if "zero" in order else None for store, order in seen.items()}
assert lengths == [0, 0] and list(places.values()) == [0, 3, 0, 0, 1, None, 2], "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder/lance"
