#!/usr/bin/env bash
# huggingface_hub 2.4.0, a mirror of the hub at HF_ENDPOINT.
#
# Guess:  hf_hub_download of one file asks the mirror for that file only (HEAD, then GET).
# Seen:   the first request of each process is GET /api/agent-harnesses, a list of names of programs for the
#         User-Agent. If the mirror does not have it, the failure is not remembered: the next process asks again. (The
#         request has a time limit of 3 s, so a mirror that does not answer unknown paths delays each process by it.)
# Output seen on 2026-11-29:
#         process 1: GET /api/agent-harnesses, HEAD /org/model/resolve/main/config.json, GET /org/model/resolve/main/config.json
#         process 2: GET /api/agent-harnesses, HEAD /org/model/resolve/main/config.json
# Who meets it: who counts or allows the requests of a mirror, and who starts many short processes behind one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet huggingface_hub==2.4.0
cat > "$folder/run.py" << 'EOF'
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []


class Mirror(BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(f"{self.command} {self.path}")
        body = b"{}" if "resolve" in self.path else b""
        self.send_response(200 if body else 404)
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("ETag", '"0123"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
threading.Thread(target=server.serve_forever, daemon=True).start()
environment = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
    "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    "HF_HOME": sys.argv[1],
}
call = "from huggingface_hub import hf_hub_download; hf_hub_download('org/model', 'config.json')"
seen = []
for process in (1, 2):
    asked.clear()
    subprocess.run([sys.executable, "-c", call], env=environment, check=True, stderr=subprocess.DEVNULL)
    print(f"process {process}: {', '.join(asked)}")
    seen.append(asked[0])
assert seen == ["GET /api/agent-harnesses"] * 2, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder/home"
