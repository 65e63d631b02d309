// Owns the list of faults as data: each with its required behaviour and its tests.
import { AT_START, row } from "./row.ts";
import type { FaultRow } from "./row.ts";
import { UPKEEP } from "./table-upkeep.ts";

/** Files whose tests run under load, with a traffic floor, a ledger of all bytes, and proof of the fault's effect. */
const LOADED =
  /^test\/(?:faults\/(?:disk|failpoints|memory|network|peers|processes|reads|rows|soak)|(?:sidecar\/sidecar|vault\/server)\.kill)\.test\.ts$|^crates\/core\/tests\/lanes\/failpoints\.rs$/;

export const isLoaded = ({ tests }: FaultRow): boolean => tests.some((path) => LOADED.test(path));

const ENGINE = "test/engine/test_faults.py";
const NETWORK = "test/faults/network.test.ts";
const PROCESSES = "test/faults/processes.test.ts";
const PEERS = "test/faults/peers.test.ts";
const ROWS = "test/faults/rows.test.ts";
const RUST = "crates/core/tests/";
const SHIM = "python-shim/tests/";

/** Reason why no other load is needed. */
const OWN_LOAD = { unloaded: "the test makes a load of its own, with simulated engines" };
/** Reason why load would prove nothing. */
const BY_NAME = { unloaded: "depends on names, not on traffic" };

export const FAULTS: readonly FaultRow[] = [
  row(
    "F1",
    "vault killed, idle or while it reads or writes",
    "reads become misses within the deadline; writes are dropped and counted; no request fails",
    [PROCESSES, ENGINE, "test/engine/test_deaths.py", "test/client/vault/vault-client.test.ts"],
  ),
  row(
    "F2",
    "vault restarts with its memory lost",
    "clients notice the restart by its new epoch; all that was held is a miss",
    [PROCESSES, "test/client/vault/vault-client.test.ts"],
  ),
  row(
    "F3",
    "vault restarts with its disk",
    "the vault rebuilds its index, verifies each record before it serves it, and answers misses at once meanwhile",
    [PROCESSES, "test/vault/server.kill.test.ts"],
  ),
  row(
    "F4",
    "slow vault (ten times the latency, a trickle)",
    "deadlines hold, and requests that need another vault do not wait",
    [NETWORK, "test/client/vault/lanes.test.ts"],
  ),
  row(
    "F5",
    "network partition, also one way",
    "as F1; the vault is used again once the network is whole",
    [NETWORK],
  ),
  row(
    "F6",
    "half-open TCP: the peer is gone and no packet says so",
    "noticed within the deadlines; bytes in buffers never count as stored",
    [NETWORK],
  ),
  row("F7", "lost and reordered packets", "all bytes are right; transfers are only slower", [
    NETWORK,
    "test/faults/packets.test.ts",
    "test/faults/soak.test.ts",
  ]),
  row(
    "F8",
    "connection reset in mid-frame",
    "the received part is discarded, and its slot is free again",
    [NETWORK],
  ),
  row(
    "F9",
    "bit flip in flight, at rest, in memory",
    "the flip is found and counted, the record is quarantined, and the block is a miss",
    [
      NETWORK,
      ROWS,
      "test/faults/reads.test.ts",
      "test/sidecar/restore/restore.faults.test.ts",
      `${RUST}disk_damage.rs`,
      `${RUST}flips.rs`,
      `${RUST}lanes/frames.rs`,
    ],
  ),
  row(
    "F10",
    "truncated, oversize, empty, repeated or reordered frame",
    "the frame is refused with a code, the connection ends, and nothing is allocated beyond the limit",
    [
      NETWORK,
      ROWS,
      "test/faults/decoders.test.ts",
      "test/faults/parsers.test.ts",
      `${RUST}lanes/frames.rs`,
      `${SHIM}test_frames.py`,
      `${SHIM}test_decoders.py`,
      `${SHIM}test_damaged.py`,
    ],
  ),
  row(
    "F11",
    "right checksum under the wrong key",
    "a miss, because the checked header contains the record's identity",
    [ROWS, "test/sidecar/restore/restore.faults.test.ts", "test/vault/server.stores.test.ts"],
  ),
  row(
    "F12",
    "disk full or read-only",
    "reads go on, writes stop, memory serves records, and the vault raises an alarm; half a record is never readable",
    [
      PROCESSES,
      "test/vault/state/disk-watch.test.ts",
      `${RUST}disk_full.rs`,
      `${RUST}disk_faults.rs`,
    ],
  ),
  row(
    "F13",
    "EIO, short write, failed sync, torn segment",
    "the vault gives the segment up; after a failed sync nothing in it counts as durable",
    [`${RUST}lanes/failpoints.rs`, `${RUST}disk_faults.rs`, `${RUST}disk_damage.rs`],
  ),
  row(
    "F14",
    "slow or hung disk",
    "disk work has its own threads and a time limit, so network work goes on",
    ["test/faults/disk.test.ts", `${RUST}disk_faults.rs`, `${RUST}lanes/slow.rs`],
  ),
  row("F15", "the wall clock jumps", "deadlines, leases and lifetimes follow the monotonic clock", [
    PROCESSES,
  ]),
  row(
    "F16",
    "process pauses longer than any lease",
    "when it goes on, what it held is stale, and is refused",
    [PROCESSES],
  ),
  row(
    "F17",
    "memory limit reached, process killed for memory",
    "the process evicts first; if it is killed, it is started again, and the engine goes on serving",
    [
      "test/faults/memory.test.ts",
      "test/sidecar/process/oom.test.ts",
      "test/vault/server.stores.test.ts",
      "test/sidecar/process/local-vault.test.ts",
    ],
  ),
  row(
    "F18",
    "sidecar crashes",
    "the shim goes on without it at once, and connects again; slots that an engine is reading stay",
    ["test/sidecar/sidecar.kill.test.ts", ENGINE, `${SHIM}test_arena.py`],
  ),
  row("F19", "sidecar hangs", "the shim's deadline ends the wait; no engine thread waits", [
    PROCESSES,
    ENGINE,
    `${SHIM}test_channel.py`,
  ]),
  row(
    "F20",
    "engine crashes while it saves or loads",
    "its slots are free again, and nothing unfinished is ever readable",
    [PROCESSES, "test/sidecar/engine/engine.test.ts", "test/engine/test_kills.py"],
  ),
  row("F21", "shared memory left after a crash", "removed at the next start", [
    PROCESSES,
    `${RUST}arena.rs`,
  ]),
  row(
    "F22",
    "a peer truncates the shared memory",
    "the memory is sealed against a change of its size",
    [`${RUST}arena.rs`],
    {
      unloaded: "it is one call, which the kernel refuses",
    },
  ),
  row(
    "F23",
    "Python attaches to shared memory",
    "Python's resource tracker never learns of our segments, so it cannot remove them",
    [`${SHIM}test_arena.py`],
    AT_START,
  ),
  row(
    "F24",
    "other versions of shim, sidecar, vault",
    "it works, or is refused with both versions named",
    [
      PEERS,
      "test/vault/calls/records.test.ts",
      "test/sidecar/shim-server.test.ts",
      `${SHIM}test_channel.py`,
    ],
  ),
  row(
    "F25",
    "same hash, other model, weights, LoRA, parallelism, dtype or layout",
    "another namespace, so there is no hit",
    [
      `${SHIM}test_namespace.py`,
      `${SHIM}test_weights.py`,
      `${SHIM}test_resolved.py`,
      `${SHIM}test_requests.py`,
      "test/engine/test_two_engines.py",
      "test/engine/test_names.py",
      "test/engine/test_pictures.py",
    ],
    BY_NAME,
  ),
  row(
    "F26",
    "two engines of different configuration on one vault",
    "both work, and share no blocks",
    ["test/sidecar/engine/engine.test.ts"],
    BY_NAME,
  ),
  row(
    "F27",
    "colliding hashes",
    "hashes have 256 bits and are never shortened; weak hashes are refused by name",
    ["test/base/block.test.ts", `${SHIM}test_namespace.py`],
    BY_NAME,
  ),
  row(
    "F28",
    "ranks disagree after an eviction",
    "a block counts as held only if all its shards are",
    [ROWS, "test/sidecar/engine/engine.test.ts"],
  ),
  row(
    "F29",
    "two engines store the same key",
    "the vault keeps the first record, and the second engine sends nothing",
    [ROWS, "test/vault/server.stores.test.ts"],
  ),
  row(
    "F30",
    "a record is evicted while it is read",
    "a record that is being sent stays until it is sent; later requests miss",
    [ROWS, "test/sidecar/restore/restore.faults.test.ts"],
  ),
  row(
    "F31",
    "a load fails, again and again",
    "the engine computes the prompt, once",
    [`${SHIM}test_worker.py`, `${SHIM}test_scheduler.py`],
    { unloaded: "the tests run the shim alone, request by request" },
  ),
  row("F32", "a queue is full", "saves are dropped and counted; restores end as a miss", [
    ROWS,
    "test/sidecar/sidecar.queues.test.ts",
    "test/sidecar/save/save.test.ts",
    "test/sidecar/restore/restore.test.ts",
    `${SHIM}test_saves.py`,
  ]),
  row("F33", "all vaults down: a storm of retries", "calls fail at once until a probe succeeds", [
    "test/client/vault/retries.test.ts",
    "test/client/vault/vault-client.test.ts",
    PEERS,
  ]),
  row(
    "F34",
    "all sidecars return at once after a recovery",
    "each sends its probes at random times",
    ["test/client/breaker.jitter.test.ts", "test/client/breaker.test.ts"],
    { unloaded: "the tests draw the random times, which do not depend on traffic" },
  ),
  row(
    "F35",
    "the ring changes: engines or vaults come and go",
    "no wrong owner answers; sidecars also ask the vaults that owned a block before, and send the blocks of their arenas to the new owner",
    ["test/gateway/front/sequences.test.ts", "test/sidecar/sidecar.members.test.ts"],
    BY_NAME,
  ),
  row(
    "F36",
    "many connections, slow senders, silent sockets",
    "connections have caps and time limits, and other clients are served",
    [
      ROWS,
      "test/vault/server.overload.test.ts",
      "test/vault/server.kept.test.ts",
      "test/vault/access/listener.crowds.test.ts",
      "test/sidecar/sidecar.overload.test.ts",
      "test/vault/server.bounds.test.ts",
      "test/sidecar/shim-server.test.ts",
      `${RUST}lanes/bounds.rs`,
    ],
  ),
  row("F37", "huge requests", "refused before anything is allocated; the refusal names the limit", [
    ROWS,
    "test/vault/server.overload.test.ts",
    "test/sidecar/sidecar.overload.test.ts",
    "test/vault/calls/records.test.ts",
    "test/vault/server.stores.test.ts",
  ]),
  row(
    "F38",
    "a stranger on the LAN",
    "refused before a body is read, counted, and cut off after several attempts",
    ["test/vault/access/gate.test.ts"],
    { unloaded: "the tests make every kind of call, one by one" },
  ),
  row(
    "F39",
    "another user of the machine",
    "the kernel refuses by file modes, and the process refuses by the peer's user, which it asks the kernel for",
    [
      "test/base/socket-file.peers.test.ts",
      "test/base/own-file.test.ts",
      "test/control/sidecar-link.test.ts",
      "test/cluster/credentials.test.ts",
      "python-shim/tests/test_dial.py",
      `${RUST}folder.rs`,
    ],
    { unloaded: "needs a second user of the machine, and happens as a connection opens" },
  ),
  row("F40", "HTTP/2 floods", "the connection ends, and memory stays bounded", [
    ROWS,
    "test/vault/server.overload.test.ts",
  ]),
  row(
    "F41",
    "one tenant floods the other tenants out",
    "tenants have quotas in memory and on disk; the tenant above its quota gives way",
    [`${RUST}store_tenants.rs`, `${RUST}disk_tenants.rs`],
    {
      unloaded:
        "the test is itself a load, of five tenants; test/vault/server.tenants.test.ts is another",
    },
  ),
  row(
    "F42",
    "a decompression bomb",
    "compressed messages are refused; a codec writes no more bytes than the record's header says",
    [PEERS],
  ),
  row(
    "F43",
    "mistakes in the configuration",
    "the start is refused, and the error names the nearest key",
    ["test/config/check.keys.test.ts"],
    AT_START,
  ),
  row(
    "F44",
    "port in use, stale socket, second instance, no permission",
    "refused with cause and fix; a stale socket is taken over under a lock",
    [ROWS, "test/cli/main.refusals.test.ts", "test/base/socket-file.test.ts"],
  ),
  row(
    "F45",
    "SIGTERM under load, twice; SIGINT at start, once the configuration was read",
    "the process finishes its work within its time, and ends with exit code 0; the second signal ends it at once",
    [PROCESSES, "test/cli/main.test.ts", "test/base/lifecycle.test.ts"],
  ),
  row(
    "F46",
    "a gateway's backend dies in mid-stream",
    "the client gets an error event or a broken connection, never a part that looks whole",
    ["test/gateway/front/forward.deaths.test.ts"],
    OWN_LOAD,
  ),
  row(
    "F47",
    "a wrong stream of KV events",
    "the gateway chooses worse engines; no answer is wrong",
    ["test/gateway/events/feed.storm.test.ts", "test/gateway/index/index-of-blocks.fuzz.test.ts"],
    OWN_LOAD,
  ),
  row(
    "F48",
    "weights are replaced in a running engine",
    "nothing old is restored, waiting saves are dropped, and no other engine gets blocks that the new weights compute",
    ["test/engine/test_weights.py"],
    BY_NAME,
  ),
  ...UPKEEP,
];
