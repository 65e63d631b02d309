#!/usr/bin/env bash
# Policy cache_aware of vllm-router lets every engine tokenize every prompt (0.1.17, four engines that answer at once).
#
# Guess before the run: the router asks one engine for a prompt's tokens, or keeps the texts that it sent, as other routers do.
# Seen:
# - Each completion, chat and request of the Responses API is sent to the `/render` route of all four engines, and then to one of
#   them: ten requests of a path cost the engines fifty. A fleet twice as large tokenizes twice as much.
# - `/v1/messages` and `/invocations` are sent without `/render`.
#
# Needs Python 3.10 or newer on x86-64 Linux, and the network for pip. Exits with 1 if the counts differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install vllm-router==0.1.17
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST, ENGINES, REQUESTS = "127.0.0.1", 4, 10
asked: Counter[str] = Counter()
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
        self.rfile.read(int(self.headers["content-length"]))
        asked[self.path] += 1
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


engines = [ThreadingHTTPServer((HOST, 0), Engine) for _ in range(ENGINES)]
for engine in engines:
    threading.Thread(target=engine.serve_forever, daemon=True).start()
port, metrics = free_port(), free_port()
urls = [f"http://{HOST}:{engine.server_port}" for engine in engines]
argv = [f"{sys.argv[1]}/venv/bin/vllm-router", "--worker-urls", *urls, "--host", HOST, "--port", str(port)]
argv += ["--policy", "cache_aware", "--prometheus-port", str(metrics)]
log = open(f"{sys.argv[1]}/log", "wb")
router = subprocess.Popen(argv, stdout=log, stderr=log)
try:
    for _ in range(300):
        if send("/v1/completions", {"prompt": "ready?"}) == 200:
            break
        time.sleep(0.2)
    said = [{"role": "user", "content": "How high is Mont Blanc?"}]
    expected = {}
    for path, fields, renders in (
        ("/v1/completions", {"prompt": "How high is Mont Blanc?"}, ENGINES),
        ("/v1/chat/completions", {"messages": said}, ENGINES),
        ("/v1/responses", {"input": said}, ENGINES),
        ("/v1/messages", {"messages": said}, 0),
        ("/invocations", {"messages": said}, 0),
    ):
        asked.clear()
        codes = {send(path, fields) for _ in range(REQUESTS)}
        seen = asked[path], asked[f"{path}/render"]
        print(f"{path}: {REQUESTS} requests, answered {codes}: engines got {seen[0]}, and {seen[1]} to render")
        expected[path] = seen == (REQUESTS, REQUESTS * renders)
    if not all(expected.values()):
        sys.exit("vllm-router renders otherwise now")
finally:
    router.kill()
    router.wait()
PYTHON
echo "as seen with vllm-router 0.1.17"
