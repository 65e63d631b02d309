#!/usr/bin/env bash
# NIXL's query_memory and files: what is there, and what is said to be (nixl-cu12 1.5.1, backend POSIX, no GPU).
#
# Guess before the run: a descriptor of a file with which records are registered and read says in a query that the file is
# there; a folder of that name is no such file.
# Seen:
# - A file is registered and read by its open descriptor, which stands in the place of the device's number: DONE.
#   query_memory of the very same descriptor answers None, which means "not there": it looks for a file named by the fourth
#   field, the metadata, alone, and ignores the descriptor.
# - By name, it answers a folder like a file, with the folder's size, and an empty file with size 0, also where the
#   queried descriptor asks for 4,096 bytes. Only `mode` and `size` in the answer tell them from records.
# - A read beyond the end of the file is refused (NIXL_ERR_BACKEND), as guessed.
#
# Needs Python 3.11 on x86-64 Linux with glibc, and the network for pip. Exits with 1 if an answer differs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# Without its dependencies: the interface that is used here works without torch.
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install --no-deps nixl-cu12==1.5.1 numpy==2.4.6
NIXL_LOG_LEVEL=FATAL "$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import os
import stat
import sys
import time
from pathlib import Path

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

BYTES = 4096
place = Path(sys.argv[1])
(place / "record").write_bytes(b"k" * BYTES)
(place / "empty").touch()
(place / "folder").mkdir()

agent = nixl_agent("one", nixl_agent_config(backends=[]))
agent.create_backend("POSIX")
memory = np.zeros(2 * BYTES, dtype=np.uint8)
record = os.open(place / "record", os.O_RDWR)
files = [(0, 2 * BYTES, record, "")]
agent.register_memory(agent.get_reg_descs([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM"))
agent.register_memory(agent.get_reg_descs(files, "FILE"))


def read(count: int) -> str:
    target = agent.get_xfer_descs([(memory.ctypes.data, count, 0)], "DRAM")
    source = agent.get_xfer_descs([(0, count, record)], "FILE")
    try:
        handle = agent.initialize_xfer("READ", target, source, "one")
        state = agent.transfer(handle)
        until = time.monotonic() + 10
        while state == "PROC" and time.monotonic() < until:
            time.sleep(0.01)
            state = agent.check_xfer_state(handle)
    except Exception as error:
        return str(error)
    return state


def seen(file: tuple[int, int, int, str]) -> tuple[str, int] | None:
    (answer,) = agent.query_memory([file], "POSIX", mem_type="FILE")
    if answer is None:
        return None
    return "folder" if stat.S_ISDIR(int(answer["mode"])) else "file", int(answer["size"])


whole, beyond = read(BYTES), read(2 * BYTES)
print("read of the whole file, and of twice its bytes:", whole, beyond)
by_descriptor = seen(files[0])
print("query by the same descriptor:", by_descriptor)
names = {name: seen((0, BYTES, 0, str(place / name))) for name in ("record", "empty", "folder", "absent")}
print("queries by name:", names)
as_seen = (
    (whole, beyond) == ("DONE", "NIXL_ERR_BACKEND")
    and bytes(memory[:BYTES]) == b"k" * BYTES
    and by_descriptor is None
    and names["record"] == ("file", BYTES)
    and names["empty"] == ("file", 0)
    and names["folder"] is not None
    and names["folder"][0] == "folder"
    and names["absent"] is None
)
# Without the library's own end, which logs.
sys.stdout.flush()
os._exit(0 if as_seen else 1)
PYTHON
echo "as seen with nixl-cu12 1.5.1"
