// Owns the proof that commands and metrics say of each vault of a pool what it owns and what it lacks.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import {
  describeAgain,
  describeTravel,
  row,
  takesBlocks,
} from "../../../src/cli/commands/status.ts";
import { SidecarLink } from "../../../src/control/sidecar-link.ts";
import type { TargetStatus } from "../../../src/diagnosis/inspect.ts";
import { sidecarFamilies } from "../../../src/exposition/sidecar.ts";
import type { SidecarStatus } from "../../../src/sidecar/status.ts";
import { runInside } from "../../support/command-line.ts";
import { askFor, emptyTheSecond, openPool, openReader, recordsOf } from "../../support/pools.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, SOON_MS, until } from "../../support/vaults.ts";

test("a vault that came back empty has holes, and each command says so of it alone", async () => {
  const pool = await openPool("holes", {});
  const [, lost = 0] = await recordsOf(pool.clients);
  await emptyTheSecond(pool);
  const reader = await openReader(pool);
  reader.engine.release((await askFor(reader)).plan);
  const config = join(testDirectory(), "tierkv.toml");
  const addresses = pool.clients.map(({ address }) => address);
  const cluster = `[cluster]\nkv_cold = ${JSON.stringify(addresses)}\n`;
  writeFileSync(config, `${cluster}[sidecar]\nsocket = "${reader.sidecar.socketPath}"\n`);
  const run = async (...command: string[]): Promise<string> =>
    (await runInside([...command, "--config", config])).stdout;

  type Row = SidecarStatus["vaults"]["kv"][number];
  const { vaults } = JSON.parse(await run("vaults", "ls", "--json")) as { vaults: Row[] };
  // What it held of the last blocks has nothing behind it.
  const [, { holes } = { holes: 0 }] = vaults;
  expect(holes).toBeGreaterThan(lost - 8);
  expect(holes).toBeLessThanOrEqual(lost);
  expect(vaults.map(({ address, holes: gaps, moved }) => [address, gaps, moved])).toEqual(
    addresses.map((address, at) => [address, at === 1 ? holes : 0, 0]),
  );

  const text = await run("status");
  for (const [at, address] of addresses.entries())
    expect(text).toMatch(
      new RegExp(
        `kv vault ${address} owns 3\\d\\.\\d %${at === 1 ? `; since the sidecar's start ${holes} blocks were missed there, although later ones were held` : ""}$`,
        "m",
      ),
    );
  for (const address of addresses)
    expect(text).toMatch(new RegExp(`^kv_cold ${address}: \\d+ lanes? open`, "m"));

  const seen = await run("top", "--once");
  expect(seen).toMatch(/^vault +state +owns +gaps +misplaced +rtt/m);
  for (const [at, address] of addresses.entries())
    expect(seen).toMatch(
      new RegExp(`^kv +up +3\\d\\.\\d % +${at === 1 ? holes : 0} +0 .* ${address}$`, "m"),
    );

  const explained = await run("explain");
  expect(explained).toMatch(
    new RegExp(`first missing block belongs to ${addresses[1]}; \\d+ blocks behind it are held`),
  );

  const planned = await run("plan");
  expect(planned).toMatch(/3 vaults of this pool \(201 MB in all\) hold \d{6} tokens/);

  const link = new SidecarLink(reader.sidecar.socketPath);
  closeAfterTest(link);
  await link.hello(SOON_MS);
  const status = await link.status(SOON_MS);
  const family = sidecarFamilies(status).find(
    ({ name }) => name === "tierkv_sidecar_vault_holes_total",
  );
  expect(family?.samples.map(({ value }) => value)).toEqual([0, holes, 0]);

  // One that has left its pool is nobody's trouble: no alert fires of it.
  const isOf = (name: string, of: SidecarStatus): unknown[] =>
    sidecarFamilies(of)
      .find((one) => one.name === `tierkv_sidecar_${name}`)!
      .samples.map(({ labels }) => labels?.["address"]);
  const [gone, ...others] = status.vaults.kv;
  const without = {
    ...status,
    vaults: { kv: [{ ...gone!, hasLeft: true as const }, ...others], ssm: [] },
  };
  expect(isOf("vault_up", status)).toEqual(addresses);
  expect(isOf("vault_up", without)).toEqual(addresses.slice(1));
  expect(isOf("vault_lanes_up", without)).toEqual(addresses.slice(1));

  process.kill(pool.vaults[2]!.pid, "SIGKILL");
  await until(
    async () => /lanes: kv \w+ to 1 of 3;/.test(await run("status")),
    "one to be without",
  );
});

test("a place without lanes is not told as one of which they are down", () => {
  const travel = { cut: [], restoreBytesPerS: null, saveBytesPerS: null };
  expect(describeTravel({ ...travel, lanes: { kv: "shared", ssm: "vault" } })).toBe(
    "lanes: kv not used (shared memory), ssm not used (a store); nothing has travelled yet",
  );
});

test("a cable that is cut while another is used is named", () => {
  const travel = { lanes: { kv: "up" }, restoreBytesPerS: null, saveBytesPerS: null };
  const cut = ["10.0.0.10:50051", "10.0.0.10:50051 from 10.0.0.2"];
  expect(describeTravel({ ...travel, cut })).toBe(
    "lanes: kv open; no connection over 10.0.0.10:50051, 10.0.0.10:50051 from 10.0.0.2; nothing has travelled yet",
  );
});

test("a sidecar's memory is shown with the most that all its engines may take", () => {
  const shown = (engines: number | null): string =>
    row({ address: "/s.sock", engines, usedBytes: 5e6, maxBytes: 3e6 } as TargetStatus)[7]!;
  expect([2, 0, null].map(shown)).toEqual(["5.0 MB of 6.0 MB", "5.0 MB", "5.0 MB of 3.0 MB"]);
});

test("blocks are not said to go to a vault that owns none, as one that has left its pool", () => {
  const pools = [
    { address: "a:1", share: 0 },
    { address: "a:1", share: 0.5 },
    { address: "b:1", share: 0 },
  ];
  expect(["a:1", "b:1", "alone:1"].map((address) => takesBlocks(address, pools))).toEqual([
    true,
    false,
    true,
  ]);
});

test("bytes that a vault lost and the sidecar stored again are told beside saved blocks", () => {
  const counts = new Map([["copies_sent_bytes", 11_400_000]]);
  expect(describeAgain((name) => counts.get(name) ?? 0)).toBe(
    ", 11.4 MB stored again that a vault had lost",
  );
  expect(describeAgain(() => 0)).toBe("");
});
