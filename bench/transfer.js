// Owns the figures of the vault's own calls: records stored and fetched through gRPC, beside raw TCP and memcpy in the same rounds.
import { VaultClient } from "../dist/client/vault-client.js";
import { createLogger } from "../dist/log.js";
import { digest, records } from "./lib/blocks.js";
import { figure, gigabytesPerSecond, interleaved, perGigabyte, timed } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";
import { TCP_SAYS, TcpYardstick } from "./lib/tcp.js";

const KIB = 1024;
const MIB = 1024 * KIB;
const CALL_MS = 120_000;
const SIZES = [256 * KIB, 1 * MIB, 4 * MIB];
const NAMESPACE = digest("bench transfer");
/** The first version's way, gRPC streams, is held to this on any machine. */
const STREAM_FLOOR = { on: "value", least: 0.6 };

export const title = "Store and fetch through gRPC, one vault process, raw records";

export async function run({ isQuick, say }) {
  const setBytes = (isQuick ? 64 : 256) * MIB;
  const rounds = isQuick ? 3 : 9;
  const stand = new Stand();
  const yardstick = await TcpYardstick.open(stand, setBytes);
  const address = await stand.vault(setBytes * 3);
  // Its `store` and `fetch` are the way without lanes.
  const client = new VaultClient({
    address,
    name: "kv",
    logger: createLogger("bench", QUIET),
    lanes: 0,
  });
  try {
    const figures = [];
    for (const size of SIZES) {
      say(`${size / KIB} KiB records`);
      figures.push(...(await measure(stand, client, yardstick, { size, setBytes, rounds })));
    }
    const notes = [
      `${setBytes / MIB} MiB a round, medians of ${rounds} rounds, every line measured once in each round`,
      "store ends when the vault has verified the last record; fetch when the last byte lies in memory made before, not yet verified",
      "processor time: of client and vault together, kernel included",
      TCP_SAYS,
    ];
    return { figures, notes };
  } finally {
    client.close();
    yardstick.close();
    await stand.close();
  }
}

const QUIET = { level: "silent" };

async function measure(stand, client, yardstick, { size, setBytes, rounds }) {
  const items = records(NAMESPACE, `records of ${size}`, setBytes / size, size);
  const target = Buffer.alloc(setBytes + items.length * 4 * KIB, 1);
  const cpu = { store: [], fetch: [] };
  const measured = async (name, work) => {
    const before = stand.cpuSeconds();
    const seconds = await timed(work);
    cpu[name].push(stand.cpuSeconds() - before);
    return seconds;
  };
  const measures = {
    memcpy: () => timed(() => yardstick.set.copy(target)),
    tcpOut: () => timed(() => yardstick.send()),
    tcpIn: () => timed(() => yardstick.receive()),
    store: async () => {
      // Put-if-absent would send nothing otherwise.
      await client.flush(null, CALL_MS);
      return measured("store", () => store(client, items));
    },
    fetch: () => measured("fetch", () => fetchAll(client, items, target)),
  };
  // One round for nothing: connections open, memory is touched, code is compiled.
  await interleaved(1, measures);
  cpu.store = [];
  cpu.fetch = [];
  const seconds = await interleaved(rounds, measures);
  const wireBytes = items.reduce((sum, { record }) => sum + record.length, 0);
  const rate = (name) => gigabytesPerSecond(name in WIRE ? wireBytes : setBytes, seconds[name]);
  const label = size < MIB ? `${size / KIB} KiB` : `${size / MIB} MiB`;
  const floor = STREAM_FLOOR;
  return [
    figure(`${label}: store`, "GB/s", rate("store"), { beside: rate("tcpOut"), of: "raw TCP" }),
    figure(`${label}: fetch`, "GB/s", rate("fetch"), {
      beside: rate("tcpIn"),
      of: "raw TCP",
      floor,
    }),
    figure(`${label}: store, processor time`, "s/GB", perGigabyte(cpu.store, wireBytes)),
    figure(`${label}: fetch, processor time`, "s/GB", perGigabyte(cpu.fetch, wireBytes)),
    figure(`${label}: raw TCP to the other side`, "GB/s", rate("tcpOut")),
    figure(`${label}: raw TCP from it`, "GB/s", rate("tcpIn")),
    figure(`${label}: memcpy, one core`, "GB/s", rate("memcpy")),
  ];
}

const WIRE = { store: true, fetch: true };

async function store(client, items) {
  const statuses = await client.store(NAMESPACE, "kv", items, CALL_MS);
  const refused = statuses.filter((status) => status !== ACCEPTED).length;
  if (refused > 0) throw new Error(`the vault refused ${refused} of ${items.length} records`);
}

const ACCEPTED = 1;

async function fetchAll(client, items, target) {
  const stride = Math.floor(target.length / items.length);
  const keys = Buffer.concat(items.map(({ key }) => key));
  let missing = 0;
  const sink = {
    piece: (item, offset, _recordBytes, data) => data.copy(target, item * stride + offset),
    missing: () => (missing += 1),
  };
  const runs = [{ recordClass: "kv", group: 0, keys }];
  await client.fetch(NAMESPACE, runs, sink, { deadlineMs: CALL_MS });
  if (missing > 0) throw new Error(`the vault did not have ${missing} of ${items.length} records`);
}
