#!/usr/bin/env bash
# Chats through sglang-router lose fields on their way to vLLM (0.3.2, one engine that answers at once).
#
# Guess before the run: a router for several engines passes on fields that it does not know; `/v1/completions` and
# `/v1/chat/completions` behave alike.
# Seen:
# - Of a chat, fields that SGLang's API lacks are left out, with status 200 and without a line in the log: `structured_outputs`,
#   `documents`, `kv_transfer_params`, `priority`, `return_token_ids`, `prompt_logprobs`, `truncate_prompt_tokens`, and OpenAI's
#   `user`. An answer that should follow a JSON schema follows none, and a connector gets no parameters.
# - `max_tokens` of a chat arrives as `max_completion_tokens`.
# - Of a completion the same fields arrive, and `max_tokens` keeps its name.
#
# Needs Python 3.10 or newer on x86-64 Linux, and the network for pip. Exits with 1 if the counts differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install sglang-router==0.3.2
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
arrived: dict[str, dict] = {}
ANSWER = {
    "id": "x",
    "model": "m",
    "choices": [{"index": 0, "text": "ok", "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.say(MODELS)

    def do_POST(self) -> None:
        arrived[self.path] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.say(ANSWER)

    def say(self, answer: dict) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return found.getsockname()[1]


def send(path: str, fields: dict) -> int:
    body = json.dumps({"model": "m", "max_tokens": 1, **fields}).encode()
    url = f"http://{HOST}:{port}{path}"
    try:
        made = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(made, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


engine = ThreadingHTTPServer((HOST, 0), Engine)
threading.Thread(target=engine.serve_forever, daemon=True).start()
port, metrics = free_port(), free_port()
argv = [f"{sys.argv[1]}/venv/bin/sglang-router", "launch", "--worker-urls", f"http://{HOST}:{engine.server_port}"]
argv += ["--host", HOST, "--port", str(port), "--policy", "cache_aware", "--prometheus-port", str(metrics)]
log = open(f"{sys.argv[1]}/log", "wb")
router = subprocess.Popen(argv, stdout=log, stderr=log)
FIELDS = {
    "structured_outputs": {"json": {"type": "object"}},
    "kv_transfer_params": {"a": 1},
    "priority": 3,
    "return_token_ids": True,
    "prompt_logprobs": 1,
    "truncate_prompt_tokens": 10,
    "user": "somebody",
}
try:
    for _ in range(300):
        if send("/v1/completions", {"prompt": "ready?"}) == 200:
            break
        time.sleep(0.2)
    said = [{"role": "user", "content": "Name a mountain."}]
    seen = {}
    for path, fields in (
        ("/v1/chat/completions", {"messages": said, "documents": [{"text": "a"}], **FIELDS}),
        ("/v1/completions", {"prompt": "Name a mountain.", **FIELDS}),
    ):
        code = send(path, fields)
        lost = sorted(fields.keys() - arrived[path].keys())
        limit = [name for name in arrived[path] if name.startswith("max_")]
        print(f"{path}, answered {code}: left out {lost}; limit in {limit}")
        seen[path] = code, lost, limit
    expected = {
        "/v1/chat/completions": (200, sorted(["documents", *FIELDS]), ["max_completion_tokens"]),
        "/v1/completions": (200, [], ["max_tokens"]),
    }
    if seen != expected:
        sys.exit("sglang-router passes on otherwise now")
finally:
    router.kill()
    router.wait()
PYTHON
echo "as seen with sglang-router 0.3.2"
