#!/usr/bin/env bash
# Mooncake Store's put: what its answers leave out (mooncake-transfer-engine-non-cuda 0.3.13.post1, TCP, one node of 64 MiB).
#
# Guess before the run: 0 means that the object lies in the store as the caller asked for it, and an error of a batch means that
# nothing of the batch was stored.
# Seen:
# - put with ReplicateConfig.replica_num = 2 answers 0 where one node is there, and the object has one replica.
# - put_batch of three objects, one of them with an empty key, answers one number, -600 (invalid parameters); the two
#   others are stored and can be read.
# - put of 17 MiB answers -600, too, where the store has 64 MiB free: the value must fit the client's own buffer, the fifth
#   argument of setup (16 MiB here). The object is absent afterwards.
#
# Needs Python 3.11 to 3.13 on x86-64 Linux with glibc, and the network for pip. Exits with 1 if an answer differs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy==2.4.6
MC_LOG_LEVEL=ERROR "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import socket
import subprocess
import sys
import time
from pathlib import Path

import mooncake
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

HOST, MIB = "127.0.0.1", 1 << 20


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return found.getsockname()[1]


rpc, metrics = free_port(), free_port()
program = Path(mooncake.__file__).parent / "mooncake_master"
program.chmod(0o755)
flags = [f"--rpc_address={HOST}", f"--rpc_port={rpc}", f"--metrics_host={HOST}", f"--metrics_port={metrics}"]
log = open(Path(sys.argv[1]) / "master.log", "wb")
master = subprocess.Popen([program, *flags], stdout=log, stderr=log)
try:
    for _ in range(100):
        try:
            socket.create_connection((HOST, rpc), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    store = MooncakeDistributedStore()
    assert store.setup(HOST, "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", f"{HOST}:{rpc}") == 0

    two = ReplicateConfig()
    two.replica_num = 2
    replicas = store.put("twice", b"r" * 100, two), len(store.get_replica_desc("twice"))
    print("replica_num = 2, one node: answer, replicas:", *replicas)

    batch = store.put_batch(["first", "", "third"], [b"1", b"2", b"3"])
    stored = store.get("first"), store.get("third")
    print("put_batch with one empty key: answer, the two others:", batch, *stored)

    long = store.put("long", b"z" * (17 * MIB)), store.is_exist("long")
    fits = store.put("fits", b"z" * (15 * MIB)), store.is_exist("fits")
    print("17 MiB, then 15 MiB, with a buffer of 16 MiB: answer, there:", *long, *fits)

    expected = ((0, 1), -600, (b"1", b"3"), (-600, 0), (0, 1))
    if (replicas, batch, stored, long, fits) != expected:
        sys.exit("Mooncake answers otherwise now")
finally:
    master.kill()
    master.wait()
PYTHON
echo "as seen with mooncake-transfer-engine-non-cuda 0.3.13.post1"
