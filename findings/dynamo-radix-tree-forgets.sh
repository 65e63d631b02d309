#!/usr/bin/env bash
# Dynamo's RadixTree, the index of its KV-aware router, forgets blocks that the engine still holds (ai-dynamo-runtime 1.6.1).
#
# Guess before the run: a block counts for a worker from the event that stored it to the event that removed it.
# Seen, with prompts of the blocks 1, 2, 3, each event valid and in order:
# - 1, 2, 3 stored, 2 removed, 2 stored again: the prompt matches 2 blocks. Block 3 was never removed; it went from the index
#   with its parent. An engine with sliding windows removes blocks before their children.
# - 1, 2 stored twice, 2 removed once: the prompt matches 1 block. vLLM reports each copy of a block, and one copy is left.
# - 2, 3 stored under block 1, which is not known (a router that starts late): the event raises an error and leaves nothing;
#   once 1 is stored, the prompt matches 1 block of 3.
# Whoever counts reuse from these scores sends prompts to workers that lack less than it says.
#
# Needs Python 3.10 or newer on x86-64 Linux with glibc, and the network for pip. Exits with 1 if a number differs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install ai-dynamo-runtime==1.6.1
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON'
import json
import sys

from dynamo._core import RadixTree

WORKER, PROMPT = 1, [1, 2, 3]


class Told:
    """An index that is told of one worker's events, numbered from 0. A block's own hash is 1000 more than its tokens' hash."""

    def __init__(self) -> None:
        self.tree, self.count, self.errors = RadixTree(), 0, []

    def tell(self, data: dict) -> "Told":
        event = {"event_id": self.count, "data": data, "dp_rank": 0}
        self.count += 1
        try:
            self.tree.apply_event(WORKER, json.dumps(event).encode())
        except RuntimeError as error:
            self.errors.append(str(error))
        return self

    def stored(self, *blocks: int, parent: int | None = None) -> "Told":
        of = [{"block_hash": 1000 + block, "tokens_hash": block} for block in blocks]
        above = None if parent is None else 1000 + parent
        return self.tell({"stored": {"parent_hash": above, "blocks": of}})

    def removed(self, *blocks: int) -> "Told":
        return self.tell({"removed": {"block_hashes": [1000 + block for block in blocks]}})

    @property
    def matched(self) -> int:
        return self.tree.find_matches(PROMPT).scores.get((WORKER, 0), 0)


whole = Told().stored(1, 2, 3)
middle = Told().stored(1, 2, 3).removed(2).stored(2, parent=1)
copies = Told().stored(1, 2).stored(1, 2).removed(2)
late = Told().stored(2, 3, parent=1).stored(1)
seen = [whole.matched, middle.matched, copies.matched, late.matched]
print("blocks matched: all stored, middle removed and stored again, one of two copies removed, parent told last:", *seen)
print("errors of the last:", *late.errors)
sys.exit(0 if (seen, len(late.errors)) == ([3, 2, 1, 1], 1) else "RadixTree answers otherwise than when this was written")
PYTHON
