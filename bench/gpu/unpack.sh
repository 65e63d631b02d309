#!/bin/sh
# Joins the pieces of pack.py: unpack.sh PIECES FOLDER. Afterwards PYTHONPATH=FOLDER/site, and FOLDER/node is Node.
set -eu
pieces=$1 folder=$2
mkdir -p "$folder/site"
cat "$pieces"/site.[0-9]* > "$folder/site.tar.xz"
python3 - "$pieces/node.xz" "$folder" <<'PY'
import lzma, pathlib, shutil, sys, tarfile
packed, folder = sys.argv[1], pathlib.Path(sys.argv[2])
with lzma.open(packed) as node, open(folder / "node", "wb") as plain:
    shutil.copyfileobj(node, plain)
(folder / "node").chmod(0o755)
with tarfile.open(folder / "site.tar.xz") as site:
    site.extractall(folder / "site", filter="data")
PY
rm "$folder/site.tar.xz"
python3 -m compileall -q -j 0 "$folder/site" > /dev/null 2>&1 || true # halves the time of a start
