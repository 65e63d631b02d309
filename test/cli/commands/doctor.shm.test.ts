// Owns the proof that `tierkv doctor --shm` measures memory with another process, and says what is wrong with it.
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { describeShared, faultsOf } from "../../../src/cli/doctor/shared-doctor.ts";
import type { Place, Report } from "../../../src/cli/doctor/shared-doctor.ts";
import { Program, runInside, runProgram } from "../../support/command-line.ts";
import { processesWith } from "../../support/processes.ts";
import { closeAfterTest, until } from "../../support/vaults.ts";

const GOOD = { inPerS: 8e9, outPerS: 9e9, unseen: 0, wrong: 0, tripNs: [400, 900] };
const BAD = { ...GOOD, unseen: 2000, tripNs: [0, 0] };
const REPORT: Report = {
  isSameHost: true,
  node: 2,
  writeBack: "clwb",
  loadNs: 300,
  ownLoadNs: 100,
  rounds: 2000,
  hardware: GOOD,
  clflush: GOOD,
  lockNs: [50, 800],
};
const PLACE: Place = {
  path: "/mnt/cxl/region",
  isThere: true,
  fileSystem: "famfs",
  isMemory: true,
  processors: "",
};

function regionPath(): string {
  const folder = mkdtempSync("/dev/shm/tierkv-test-doctor-");
  closeAfterTest({ close: () => rmSync(folder, { recursive: true, force: true }) });
  return join(folder, "region");
}

test("memory of this machine is good, measured with a process of its own, or with one that waits", async () => {
  const path = regionPath();
  const peer = new Program(["doctor", "--shm", path, "--shm-peer"]);
  closeAfterTest({ close: () => peer.signal("SIGKILL") });
  await until(() => existsSync(`${path}.doctor`), "the other process");
  const { exitCode, stdout, stderr } = await runInside(["doctor", "--json", "--shm", path]);
  expect([exitCode, stderr]).toEqual([0, ""]);
  expect(await peer.ended()).toMatchObject({ exitCode: 0 });
  const found = JSON.parse(stdout) as Report & Place & { faults: string[] };
  expect(found).toMatchObject({ fileSystem: "tmpfs", isSameHost: true, faults: [] });
  expect(found.hardware).toMatchObject({ unseen: 0, wrong: 0 });
  expect(found.loadNs).toBeGreaterThan(0);

  const alone = await runProgram(["doctor", "--shm", `shm:${path}`]);
  // Nobody waits for seconds without a word.
  const said = `measuring shm:${path} with a second process, for about 5.0 s\n`;
  expect([alone.exitCode, alone.stderr]).toEqual([0, said]);
  expect(alone.stdout).toContain("There is no region at that path yet");
  expect(alone.stdout).toContain("Records can be kept there.");
  expect(existsSync(`${path}.doctor`)).toBe(false);
});

test("a path where nothing can be made, and a peer of nothing, are refused with a reason", async () => {
  const refused = await runInside(["doctor", "--shm", "/dev/shm/tierkv-none/region"]);
  expect([refused.exitCode, refused.stderr]).toEqual([
    2,
    "tierkv: --shm /dev/shm/tierkv-none/region: there is no folder /dev/shm/tierkv-none: create it, or correct the path (USAGE)\n",
  ]);
  const device = await runInside(["doctor", "--shm", "shm:/dev/null"]);
  expect([device.exitCode, device.stderr]).toEqual([
    1,
    expect.stringMatching(/null: a device.*dax/),
  ]);
  expect((await runInside(["doctor", "--shm-peer"])).exitCode).toBe(2);
  for (const folder of ["/dev/shm", "shm:/dev/shm", "/dev/shm/tierkv-none/"]) {
    const { exitCode, stderr } = await runInside(["doctor", "--shm", folder]);
    const asked = `--shm ${folder}: it is a folder: name a file in it, like --shm ${join(folder, "tierkv")} `;
    expect([exitCode, stderr]).toEqual([2, expect.stringContaining(asked)]);
  }
});

test("an interrupt leaves neither the other process nor its file", async () => {
  const path = regionPath();
  const doctor = new Program(["doctor", "--shm", path]);
  closeAfterTest({ close: () => doctor.signal("SIGKILL") });
  await until(() => existsSync(`${path}.doctor`), "the other process");
  const [peer = 0] = processesWith(path, "--shm-peer");
  // Stopped, so that the measurement does not end first.
  process.kill(peer, "SIGSTOP");
  doctor.signal("SIGINT");
  await doctor.ended();
  expect(doctor.process.signalCode).toBe("SIGINT");
  await until(() => processesWith(path, "--shm-peer").length === 0, "its end");
  expect(existsSync(`${path}.doctor`)).toBe(false);
});

test("what is wrong is said with what to do", () => {
  const faults = (
    report: Partial<Report>,
    place: Partial<Place> = {},
    as: Partial<Parameters<typeof faultsOf>[2]> = {},
  ): string =>
    faultsOf(
      { ...REPORT, ...report },
      { ...PLACE, ...place },
      { coherence: "hardware", host: null, ...as },
    ).join("\n");
  expect(faults({})).toBe("");
  expect(faults({ hardware: BAD })).toContain('coherence = "clflush"');
  expect(faults({ hardware: BAD }, {}, { coherence: "clflush" })).toBe("");
  expect(faults({ hardware: BAD, clflush: { ...GOOD, wrong: 1 } })).toContain("keep no records");
  expect(faults({ isSameHost: false })).toContain("[cluster] host");
  expect(faults({ isSameHost: false }, {}, { host: 1 })).toBe("");
  expect(faults({}, { fileSystem: "ext4", isMemory: false })).toContain("ext4 writes to a disk");
  const lines = describeShared({ ...REPORT, hardware: BAD }, PLACE, []);
  expect(lines[0]).toBe(
    "/mnt/cxl/region: famfs, NUMA node 2, processors none (far memory, like CXL); reading a cache line of 64 bytes takes 300 ns, 3.00 times as long as in /dev/shm; clwb writes it back",
  );
  expect(describeShared(REPORT, { ...PLACE, isThere: false }, [])[1]).toContain("no region");
  expect(lines[2]).toMatch(/^hardware +8.0 GB\/s +9.0 GB\/s +- \/ - +0 \/ 2000 of 2000$/);
});
