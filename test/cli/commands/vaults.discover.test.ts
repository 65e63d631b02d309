// Owns the proof that vaults are found that announce themselves, and no others, and that nothing is trusted by being found.
// @module-tag nightly
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { describeFound } from "../../../src/cli/commands/vaults.ts";
import { decodeJoinCode } from "../../../src/cli/join/join-code.ts";
import type { Candidate } from "../../../src/cluster/mdns.ts";
import { certificate } from "../../support/closed-vaults.ts";
import { Program, runInside, runProgram } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB } from "../../support/vaults.ts";

interface Started {
  program: Program;
  address: string;
  home: string;
}

async function start(role: string, announce: boolean, more = ""): Promise<Started> {
  const home = testDirectory();
  const config = join(home, "vault.toml");
  const vault = `[vault]\nlisten = "127.0.0.1:0"\nmax_bytes = "32MiB"\nannounce = ${announce}\n`;
  writeFileSync(config, `[cluster]\nrole = "${role}"\n${vault}${more}`);
  const program = new Program(["vault", "--json", "--config", config], { env: { HOME: home } });
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  return { program, address: String((await program.firstResult())["address"]), home };
}

test("two vaults announce themselves and one does not: class, capacity, certificate, and who was joined", async () => {
  const closed = await start("kv_cold", true);
  const open = await start("cold", true, "insecure_lan = true\n");
  const silent = await start("kv_cold", false);
  const home = testDirectory();
  const ours = new Set([closed, open, silent].map(({ address }) => address));
  const found = async (): Promise<Candidate[]> => {
    const argv = ["vaults", "discover", "--json"];
    const { stdout, stderr } = await runProgram(argv, { env: { HOME: home } });
    expect(stderr).toMatch(/^listening for vaults that announce themselves, for about 1\.8 s\n$/);
    const { candidates } = JSON.parse(stdout) as { candidates: Candidate[] };
    // Whoever else is on this machine may announce his own.
    return candidates.filter(({ address }) => ours.has(address));
  };
  const line = readFileSync(join(closed.home, ".local/state/tierkv/invitation"), "utf8").trim();
  const code = line.replace("tierkv join ", "");
  const print = decodeJoinCode(code).fingerprint.toString("hex");
  const expected = [
    { address: closed.address, class: "kv", certificate: print, here: "new" },
    { address: open.address, class: "both", certificate: null, here: "new" },
  ].toSorted((a, b) => (a.address < b.address ? -1 : 1));
  const first = await found();
  expect(first).toMatchObject(expected);
  expect(first.map(({ capacityBytes }) => capacityBytes)).toEqual([32 * MIB, 32 * MIB]);
  const text = describeFound(first).join("\n");
  expect(text).toContain(print.slice(0, 16));
  expect(text).toMatch(/Anybody may announce this.*tierkv invite/);

  // Found is not joined; and one that shows another certificate than the one that was joined is told from it.
  expect((await runInside(["join", code], { env: { HOME: home } })).exitCode).toBe(0);
  const here = async (): Promise<string | undefined> =>
    (await found()).find(({ address }) => address === closed.address)?.here;
  expect(await here()).toBe("joined");
  const folder = closed.address.replaceAll(/[^\w.-]/g, "_");
  const pem = join(home, ".config/tierkv/vaults", folder, "vault.pem");
  writeFileSync(pem, certificate("server").certPem);
  expect(await here()).toBe("other");

  // Who ends says so.
  closed.program.signal("SIGTERM");
  await closed.program.ended();
  expect((await found()).map(({ address }) => address)).toEqual([open.address]);
});
