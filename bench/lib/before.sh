#!/bin/sh
# Owns the build of `waits`, the measuring program, from an earlier commit: `bench/lib/before.sh COMMIT FOLDER`.
#
# FOLDER/waits is that commit's core with the present program. In FOLDER/waits-usual-limits its lanes ask for buffers of
# 212,992 bytes, which is what Linux leaves of theirs at its usual limits; a namespace cannot have limits of its own.
set -eu
commit=$1
folder=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder/tree"
(cd "$here" && git archive "$commit" crates) | tar -x -C "$folder/tree"
core=$folder/tree/crates/core
rm -rf "$core/examples/waits"
cp -R "$here/crates/core/examples/waits" "$core/examples/"
cp "$here/crates/core/tests/support/folder.rs" "$here/crates/core/tests/support/records.rs" "$core/tests/support/"
export CARGO_TARGET_DIR="$folder/target"
build() {
  (cd "$folder/tree/crates" && cargo build --release --quiet --package tierkv-core --example waits)
  cp "$CARGO_TARGET_DIR/release/examples/waits" "$folder/$1"
}
build waits
sed -i 's/LANE_SOCKET_BYTES: usize = 4 \* MIB/LANE_SOCKET_BYTES: usize = 212_992/' "$core/src/limits.rs"
build waits-usual-limits
