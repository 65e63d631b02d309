// Owns the proof that what is wrong with a set-up comes first, with exit code 1, from `status` and from `doctor`.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import type * as PoolLimits from "../../src/base/limits/pool.ts";
import type { StoreNode } from "../../src/client/source.ts";
import type { Address } from "../../src/config/config.ts";
import { loadConfig } from "../../src/config/load.ts";
import { askFleet } from "../../src/control/fleet.ts";
import { findings } from "../../src/diagnosis/findings.ts";
import type { Finding } from "../../src/diagnosis/findings.ts";
import { inspect } from "../../src/diagnosis/inspect.ts";
import type { Seen } from "../../src/diagnosis/inspect.ts";
import { runInside } from "../support/command-line.ts";
import { configOf, openSetUp } from "../support/set-ups.ts";
import { FakeEngine, FakeWorker, helloFrame, makeGroup } from "../support/shim-client.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import { openClient, openVault } from "../support/vaults.ts";

/** Sidecar, vaults and command share one loop here, and on a busy machine a look takes longer than in processes of their own. */
vi.mock("../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof PoolLimits>()),
  VAULTS_SEEN_MS: 60_000,
}));

const SOON = { timeout: 60_000 };

test("a set-up as it should be has no finding", async () => {
  const { path, look } = await openSetUp();
  expect(findings(await look())).toEqual([]);
  const { exitCode, stdout } = await runInside(["status", "--json", "--config", path]);
  expect([exitCode, JSON.parse(stdout)]).toMatchObject([0, { ok: true, findings: [] }]);
});

test("a sidecar with an older list than the configuration is told of, whichever vault is missing", async () => {
  const { path, look } = await openSetUp();
  const { kvCold } = loadConfig(path, {}).cluster;
  const known = kvCold[0]!.text;
  const said = async (addresses: readonly string[], isOfBoth: boolean): Promise<string[]> => {
    const seen = await look();
    const { cluster } = loadConfig(
      configOf(addresses.join('", "'), seen.config.sidecar.socket),
      {},
    );
    const list = { kvCold: cluster.kvCold, ssmCold: isOfBoth ? cluster.kvCold : [] };
    const config = { ...seen.config, cluster: { ...seen.config.cluster, ...list } };
    return findings({ ...seen, config }).map(({ code, text }) => `${code} ${text}`);
  };
  expect(await said([known], false)).toEqual([]);
  expect(await said(["127.0.0.1:7"], true)).toEqual([
    expect.stringMatching(
      /^sidecar_stale .* does not use 127\.0\.0\.1:7, .* \(\[cluster\] kv_cold, ssm_cold\): restart its service, or run `pkill/,
    ),
    expect.stringMatching(`still uses ${known}, .* \\(\\[cluster\\] kv_cold\\): restart`),
  ]);
});

test("a vault that is being drained is told of, and how to end that", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const targets = seen.targets.map((one) =>
    one.target === "kv_cold" ? { ...one, draining: true } : one,
  );
  expect(seen.targets.map(({ draining }) => draining)).toContain(false);
  const [found, ...others] = findings({ ...seen, targets });
  expect([found?.code, found?.severity, others]).toEqual(["draining", "note", []]);
  expect(found?.text).toMatch(/takes no new records; `tierkv vaults drain .* --end` ends that$/);
  const { cluster } = seen.config;
  const told = (kvCold: Address[]): string | undefined => {
    const config = { ...seen.config, cluster: { ...cluster, kvCold, ssmCold: [] } };
    return findings({ ...seen, config, targets }).find(({ code }) => code === "draining")?.text;
  };
  const other = { host: "192.0.2.7", port: 7, text: "192.0.2.7:7" };
  expect(told([other])).toMatch(
    /no longer names it: start the sidecar again, then stop that vault$/,
  );
  // The machine of a vault has no list, and other machines may still name the vault.
  expect(told([])).toMatch(/--end` ends that$/);
});

test.each(["status", "doctor"])(
  "%s: an engine that cannot be named is the first line, one that is being named a note",
  async (command) => {
    const { path, look } = await openSetUp();
    const engine = new FakeEngine(loadConfig(path, {}).sidecar.socket);
    const tell = (percent: number, refused: string): void =>
      engine.scheduler.send({ t: "counts", counters: {}, naming: { percent, refused } });
    const until = (code: string): Promise<void> =>
      vi.waitFor(async () => expect(findings(await look())[0]?.code).toBe(code), SOON);
    tell(61, "");
    await until("naming");
    const being = await runInside([command, "--config", path]);
    expect(being.stdout).toMatch(/^NOTE: engine .* is hashing its model's weights, .*; 61 % done/);
    tell(61, "VllmConfig.additional_config: a thing without a form");
    await until("unnamed");
    const refused = await runInside([command, "--config", path]);
    expect(refused.exitCode).toBe(1);
    expect(refused.stdout).toMatch(
      /^PROBLEM: engine .* saves and restores nothing: VllmConfig\.additional_config: a thing/,
    );
    tell(100, "");
    await vi.waitFor(async () => expect(findings(await look())).toEqual([]), SOON);
    engine.close();
  },
);

test.each(["status", "doctor"])(
  "%s: an arena that cannot be mapped is the first line",
  async (command) => {
    const { path } = await openSetUp();
    const { socket } = loadConfig(path, {}).sidecar;
    const engine = new FakeEngine(socket, { isMapping: false });
    const [worker] = engine.workers;
    const { arena } = (await worker!.wait("arena")) as { arena: number };
    worker!.send({ t: "unmapped", arena, reason: "arena 7 came without its descriptor" });
    worker!.send({ t: "unmapped", arena: arena + 1, reason: "of another" });
    worker!.send({ t: "ping", n: 1 });
    await worker!.wait("pong");
    const { exitCode, stdout } = await runInside([command, "--config", path]);
    expect(exitCode).toBe(1);
    expect(stdout).toMatch(
      /^PROBLEM: engine engine-1 \(test\/model\) saves and restores nothing: worker 0 cannot map its shared memory: arena 7 came/,
    );
  },
);

test("an engine of which ranks are missing is a note with their number, and none once all are there", async () => {
  const { path, look } = await openSetUp();
  const { socket } = loadConfig(path, {}).sidecar;
  const [here, far] = [0, 1].map((rank) => new FakeWorker(socket, rank, [makeGroup()]));
  const codes = async (): Promise<string[]> =>
    findings(await look())
      .map(({ code }) => code)
      .filter((code) => code !== "naming");
  here!.send(helloFrame({ world: 2 }));
  await vi.waitFor(async () => expect(await codes()).toEqual(["ranks_missing"]), SOON);
  expect(findings(await look())).toContainEqual({
    code: "ranks_missing",
    severity: "note",
    text: expect.stringContaining("1 of 2 are;") as string,
  });
  far!.send(helloFrame({ world: 2, rank: 1 }));
  await vi.waitFor(async () => expect(await codes()).toEqual([]), SOON);
  here!.close();
  far!.close();
});

test("a CPU with AMX, where vLLM may die, is a note of the engine, and no problem", async () => {
  const { path, look } = await openSetUp();
  const { socket } = loadConfig(path, {}).sidecar;
  const engine = new FakeEngine(socket, { hello: { amx_tiles: 1 } });
  const isSaid = async (): Promise<void> =>
    expect(findings(await look())).toMatchObject([{ code: "amx", severity: "note" }]);
  await vi.waitFor(isSaid, SOON);
  const { exitCode, stdout } = await runInside(["status", "--config", path]);
  expect(exitCode).toBe(0);
  expect(stdout).toMatch(/^NOTE: engine engine-1 .* CPU with AMX, .* a prompt of 64 tokens/);
  const computed = (tokens: number): void =>
    engine.workers[0]!.send({
      t: "counts",
      counters: { told: 1 },
      steps: [[tokens, 2000, 5_000_000]],
    });
  computed(63);
  const isHeard = async (): Promise<void> =>
    expect((await look()).sidecar?.counters["shim_told"]).toBe(1);
  await vi.waitFor(isHeard, SOON);
  expect(findings(await look())).toHaveLength(1);
  computed(64);
  await vi.waitFor(async () => expect(findings(await look())).toEqual([]), SOON);
  engine.close();
});

test("an engine that is not vLLM is named with its software in status and top", async () => {
  const { path } = await openSetUp();
  const { socket } = loadConfig(path, {}).sidecar;
  const hello = { kind: "sglang", vllm: "sglang 0.5.23 torch 2.13.0" };
  const engine = new FakeEngine(socket, { hello });
  const isSaid = async (): Promise<void> => {
    const { stdout } = await runInside(["status", "--config", path]);
    expect(stdout).toContain("sidecar: 1 engine (sglang 0.5.23 torch 2.13.0) connected");
  };
  await vi.waitFor(isSaid, SOON);
  const { stdout } = await runInside(["top", "--once", "--config", path]);
  expect(stdout).toMatch(/engine-1 +sglang /);
  engine.close();
});

test.each([
  [{ PYTORCH_CUDA_ALLOC_CONF: "max_split_size_mb:512,expandable_segments:True" }, 1],
  [{ PYTORCH_ALLOC_CONF: "expandable_segments:True" }, 1],
  [{ PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:False" }, 0],
])(
  "doctor names an allocator with which vLLM takes no connector, and the way out: %j",
  async (env, count) => {
    const { path } = await openSetUp();
    const { stdout } = await runInside(["doctor", "--config", path], { env });
    const said = [
      ...stdout.matchAll(/^NOTE: PYTORCH_.* expandable_segments:True.*--enable-sleep-mode$/gm),
    ];
    expect(said).toHaveLength(count);
  },
);

test.each(["status", "doctor"])("%s: what does not answer is the first line", async (command) => {
  const path = configOf("127.0.0.1:1", join(testDirectory(), "none.sock"));
  const { exitCode, stdout } = await runInside([command, "--config", path]);
  const [first = "", second = ""] = stdout.split("\n");
  expect(exitCode).toBe(1);
  expect(first).toMatch(/^PROBLEM: sidecar at .*does not answer/);
  expect(second).toMatch(/^PROBLEM: kv vault at 127\.0\.0\.1:1 does not answer/);
});

/** A node of Valkey as it should be, but for `fault`. */
const nodeWith = (fault: Partial<StoreNode>): { nodes: StoreNode[] } => {
  const memory = { usedBytes: 1 << 20, maxBytes: 1 << 30, policy: "allkeys-lfu" };
  const node = { address: "10.0.0.1:6379", ...memory, keys: 9, expiring: 0, trouble: "" };
  return { nodes: [{ ...node, ...fault }] };
};

test("what a store refused, and a node that does not tell its memory, are notes", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const withNodes = (fault: Partial<StoreNode>): Seen => ({
    ...seen,
    targets: seen.targets.map((target) => ({ ...target, ...nodeWith(fault) })),
  });
  expect(findings(withNodes({}))).toEqual([]);
  expect(findings(withNodes({ policy: "volatile-ttl", expiring: 9 }))).toEqual([]);
  const unseen = findings(withNodes({ policy: "", maxBytes: 0, trouble: "NOPERM" }));
  expect(new Set(unseen.map(({ code }) => code))).toEqual(new Set(["store_unseen"]));
  const gone = findings(withNodes({ policy: "", maxBytes: 0, trouble: "Connection refused" }));
  expect(new Set(gone.map(({ code }) => code))).toEqual(new Set(["store_node_down"]));
  const { kv } = seen.sidecar!.vaults;
  const counts = { refused_OOM: 7, refused_other: 0, requests_reads: 3 };
  const vaults = { ...seen.sidecar!.vaults, kv: kv.map((one) => ({ ...one, counts })) };
  const said = findings({ ...seen, sidecar: { ...seen.sidecar!, vaults } });
  expect(said).toMatchObject([{ code: "store_refuses", severity: "note" }]);
  expect(said[0]?.text).toMatch(
    /refused since the sidecar started: OOM 7 times \(set maxmemory-policy allkeys-lfu there, or give it more memory\)$/,
  );
  // The bucket behind a store refuses for itself.
  const bucket = { address: "s3://b/p", state: "up", trouble: "", counts: { refused_denied: 3 } };
  const behind = kv.map((one) => ({ ...one, counts: {}, behind: bucket }));
  const sidecar = { ...seen.sidecar!, vaults: { ...vaults, kv: behind } };
  expect(findings({ ...seen, sidecar })[0]?.text).toMatch(
    /^the kv store at s3:\/\/b\/p refused .* denied 3 times/,
  );
});

test.each([
  ["store_never_free", nodeWith({ policy: "noeviction" })],
  ["store_never_free", nodeWith({ policy: "volatile-lru" })],
  ["store_unbounded", nodeWith({ maxBytes: 0 })],
  ["disk_failing", { disk: { failing: true } as Seen["targets"][number]["disk"] }],
  [
    "archive_failing",
    {
      disk: { archive: { failing: true, trouble: "503", pendingBytes: 1 } } as Partial<
        Seen["targets"][number]["disk"]
      > as Seen["targets"][number]["disk"],
    },
  ],
  ["lanes_unreachable", { laneTrouble: "10.0.0.1:50052: no answer" }],
])("%s is a problem", async (code, fault) => {
  const { look } = await openSetUp();
  const seen = await look();
  const targets = seen.targets.map((target) => ({ ...target, ...fault }));
  const [found] = findings({ ...seen, targets });
  expect(found).toMatchObject({ code, severity: "problem" });
});

test("what a sidecar saw of its vaults is found as well as what vaults say themselves", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const [kv] = seen.sidecar!.vaults.kv;
  const archive = { failing: true, trouble: "503", pendingBytes: 1 };
  const disk = { usedBytes: 0, maxBytes: 1, records: 0, failing: true, archive };
  const { nodes } = nodeWith({ policy: "noeviction" });
  const vault = { ...kv!, isDraining: true, seen: { ...kv!.seen!, disk, nodes } };
  const sidecar = { ...seen.sidecar!, vaults: { kv: [vault], ssm: [vault] } };
  const all = findings({ ...seen, targets: [], sidecar });
  expect(all.map(({ code }) => code)).toEqual([
    "disk_failing",
    "archive_failing",
    "store_never_free",
    "draining",
  ]);
  for (const { text } of all) expect(text).toMatch(/^kv vault(?: at 127|: Valkey at 10)\./);
  const asked = findings({ ...seen, sidecar });
  expect(asked.map(({ code }) => code)).toEqual([]);
});

test("a store that this shell has no credentials for is a note where the sidecar reaches it", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const address = "s3://bucket/x";
  const [own, vault] = seen.targets;
  const bucket = { ...vault!, address, reachable: false, refused: true, error: "no credentials" };
  const [kv] = seen.sidecar!.vaults.kv;
  const found = (state: string): string[] => {
    const behind = { address, state, trouble: "" };
    const sidecar = { ...seen.sidecar!, vaults: { kv: [{ ...kv!, behind }], ssm: [] } };
    return findings({ ...seen, targets: [own!, vault!, bucket], sidecar }).map(({ code }) => code);
  };
  expect(found("up")).toEqual(["store_unasked"]);
  const given = { ...seen.config.cluster, storePassword: "/etc/tierkv/password" };
  const withPassword = (at: string): Finding | undefined =>
    findings({
      ...seen,
      config: { ...seen.config, cluster: given },
      targets: [own!, vault!, { ...bucket, address: at }],
      sidecar: { ...seen.sidecar!, vaults: { kv: [{ ...kv!, address: at }], ssm: [] } },
    })[0];
  const first = withPassword("valkey://127.0.0.1:1");
  expect(first).toMatchObject({ code: "store_refused" });
  expect(first?.text).toContain("store_password");
  // A bucket has no such password.
  expect(withPassword(address)).toMatchObject({ code: "store_unasked", severity: "note" });
  // The password is right there.
  const lacking = { ...bucket, refused: false, error: "NOPERM; give the user +exists" };
  const behind = { address, state: "up", trouble: "" };
  const [second] = findings({
    ...seen,
    config: { ...seen.config, cluster: given },
    targets: [own!, vault!, lacking],
    sidecar: { ...seen.sidecar!, vaults: { kv: [{ ...kv!, behind }], ssm: [] } },
  });
  expect(second).toMatchObject({ code: "unreachable", text: lacking.error });
  // A bucket is not asked before it is needed.
  expect(found("unknown")).toEqual(["store_unasked"]);
  expect(found("down")).toEqual(["vault_refused"]);
  // A sidecar that has just begun says `up`, although its first requests were denied.
  const counts = { refused_denied: 2 };
  const sidecar = { ...seen.sidecar!, vaults: { kv: [{ ...kv!, address, counts }], ssm: [] } };
  const denied = findings({ ...seen, targets: [own!, bucket], sidecar });
  expect(denied.map(({ code }) => code)).toEqual(expect.arrayContaining(["vault_refused"]));
  expect(denied.map(({ code }) => code)).not.toContain("store_unasked");
});

test("a store that answers this command and not the sidecar is a problem, with what a sidecar keeps", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const address = "valkey://127.0.0.1:7";
  const [own, vault] = seen.targets;
  const [kv] = seen.sidecar!.vaults.kv;
  const found = (state: string, trouble: string): [string, string][] => {
    const sidecar = {
      ...seen.sidecar!,
      vaults: { kv: [{ ...kv!, address, state, trouble, seen: null }], ssm: [] },
    };
    const { cluster } = loadConfig(configOf(address, seen.config.sidecar.socket), {});
    const config = { ...seen.config, cluster: { ...seen.config.cluster, kvCold: cluster.kvCold } };
    const targets = [own!, { ...vault!, address }];
    return findings({ ...seen, config, targets, sidecar }).map(({ severity, text }) => [
      severity,
      text,
    ]);
  };
  expect(found("up", "")).toEqual([]);
  expect(found("down", "WRONGPASS")).toEqual([
    [
      "problem",
      expect.stringMatching(
        /^valkey:\/\/127\.0\.0\.1:7 answers this command, and does not answer the sidecar: WRONGPASS; .* start it again/,
      ),
    ],
  ]);
});

test.each([
  ["GET v/: 403 SignatureDoesNotMatch", "correct the AWS_ variables"],
  ["GET v/: invalid peer certificate: UnknownIssuer", "let the variable AWS_CA_BUNDLE name"],
  [
    "POST v/1.seg: 507 InsufficientStorage",
    "set [vault] archive_bytes below its size, which deletes the oldest",
  ],
  ["No space left on device (os error 28)", "make room there"],
  ["GET v/: 404 NoSuchBucket", "make that bucket"],
  ["GET v/: Connection refused (os error 111)", "start the server there"],
])("an archive that says %s is told of with what to do", async (trouble, fix) => {
  const { look } = await openSetUp();
  const seen = await look();
  const archive = { failing: true, trouble, pendingBytes: 1 };
  const disk = { archive } as Partial<Seen["targets"][number]["disk"]>;
  const targets = seen.targets.map((target, index) =>
    index === 0 ? target : { ...target, disk: disk as Seen["targets"][number]["disk"] },
  );
  const [found] = findings({ ...seen, targets });
  const [, remedy] = found!.text.split(`${trouble}; `);
  expect(remedy).toContain(fix);
});

test("a bucket that the sidecar cannot use is a problem where nobody else asked it", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const [kv] = seen.sidecar!.vaults.kv;
  const behind = { address: "s3://bucket/x", state: "down", trouble: "403 AccessDenied" };
  const sidecar = { ...seen.sidecar!, vaults: { kv: [{ ...kv!, behind }], ssm: [] } };
  const [found, ...others] = findings({ ...seen, targets: [], sidecar });
  expect([found?.severity, others]).toEqual(["problem", []]);
  expect(found?.text).toMatch(/^the bucket s3:\/\/bucket\/x is not used: 403 AccessDenied; /);
});

test("an engine of the gateway that is down is a problem, with the gateway's reason", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const engine = (name: string, state: string): object => ({
    engine: name,
    state,
    reason: state === "down" ? "connection refused" : "",
  });
  const engines = [engine("a:1", "up"), engine("b:2", "down"), engine("c:3", "draining")];
  const fleet = { engines } as unknown as NonNullable<Seen["fleet"]>;
  expect(findings({ ...seen, fleet })).toEqual([
    {
      code: "gateway_engine_down",
      severity: "problem",
      text: "engine b:2 of the gateway gets no requests: connection refused; start it, or take it out of [gateway] engines",
    },
  ]);
});

test("two copies with one vault left is a note, which status and config check say", async () => {
  const { path } = await openSetUp();
  const text = readFileSync(path, "utf8");
  writeFileSync(path, text.replace("[cluster]\n", '[cluster]\nredundancy = "copies:2"\n'));
  for (const command of [["status"], ["config", "check"]]) {
    const { exitCode, stdout } = await runInside([...command, "--config", path]);
    expect([exitCode, stdout]).toEqual([
      0,
      expect.stringMatching(/^NOTE: \[cluster\] redundancy = "copies:2" has one vault, so each/m),
    ]);
  }
  const two = text.replace(/kv_cold = "(.*)"/, 'redundancy = "copies:2"\nkv_cold = ["$1", "a:1"]');
  writeFileSync(path, two);
  const checked = await runInside(["config", "check", "--config", path]);
  expect(checked.stdout).not.toContain("NOTE");
});

test("two copies with one vault left of a pool that keeps its list is that note, too", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const [kv] = seen.sidecar!.vaults.kv;
  const pool = { text: `pool:${kv!.address}`, host: "127.0.0.1", port: 1 };
  const cluster = { ...seen.config.cluster, redundancy: "copies:2" as const, kvCold: [pool] };
  const found = (...others: object[]): string[] => {
    const vaults = { kv: [kv!, ...others.map((more) => ({ ...kv!, ...more }))], ssm: [] };
    const sidecar = { ...seen.sidecar!, vaults };
    return findings({ ...seen, config: { ...seen.config, cluster }, sidecar }).map(
      ({ code }) => code,
    );
  };
  expect(found({ address: "b:1" })).not.toContain("copies_alone");
  expect(found({ address: "b:1", hasLeft: true })).toContain("copies_alone");
});

test("names that nobody resolves are a problem beside what is known, and the sidecar is shown", async () => {
  const { path, look } = await openSetUp();
  const { socket } = (await look()).config.sidecar;
  const [kv] = (await look()).sidecar!.vaults.kv;
  const list = `["${kv!.address}", "dns:nosuch.invalid:50051"]`;
  writeFileSync(path, `[cluster]\nkv_cold = ${list}\n[sidecar]\nsocket = "${socket}"\n`);
  const { exitCode, stdout } = await runInside(["status", "--json", "--config", path]);
  const said = JSON.parse(stdout) as { findings: object[]; targets: { target: string }[] };
  expect(exitCode).toBe(1);
  expect(said.targets.map(({ target }) => target)).toEqual(["sidecar", "kv_cold"]);
  expect(said.findings).toContainEqual({
    code: "unresolved",
    severity: "problem",
    text: expect.stringMatching(/^no vault is known of dns:nosuch\.invalid:50051: .*; /) as string,
  });
});

test("a list of vaults that is the last one is a note with the reason", async () => {
  const why = "no vault is known of dns:v:50051: the name server gives no answer; look there";
  const seen = await inspect(loadConfig(null, { HOME: testDirectory() }));
  expect(findings({ ...seen, outdated: [why] })).toContainEqual({
    code: "names_outdated",
    severity: "note",
    text: "the vaults of the last list stay in use, and no new one is seen: dns:v:50051: the name server gives no answer; look there",
  });
});

test("without a sidecar its own vault is not missed, too", async () => {
  const path = join(testDirectory(), "tierkv.toml");
  writeFileSync(path, `[sidecar]\nsocket = "${join(testDirectory(), "s.sock")}"\n`);
  const all = findings(await inspect(loadConfig(path, {})));
  expect(all.map(({ text }) => text)).toEqual([
    expect.stringMatching(/^sidecar at .*tierkv sidecar/),
  ]);
});

test("a vault in both lists that keeps one class is a problem with the list to mend", async () => {
  const vault = await openVault();
  const path = join(testDirectory(), "tierkv.toml");
  const { address } = vault;
  writeFileSync(path, `[cluster]\nkv_cold = "${address}"\nssm_cold = "${address}"\n`);
  const seen = await inspect(loadConfig(path, {}));
  expect(findings(seen)).toContainEqual({
    code: "vault_class",
    severity: "problem",
    text: `[cluster] ssm_cold names ${address}, and that vault keeps kv records only: take it out of ssm_cold, or write role = "cold" there`,
  });
  // A store keeps both.
  const targets = seen.targets.map((target) => ({ ...target, address: "valkey://127.0.0.1:1" }));
  expect(findings({ ...seen, targets }).map(({ code }) => code)).not.toContain("vault_class");
});

test("a vault that has left its pool may be stopped without a problem", async () => {
  const { look } = await openSetUp();
  const seen = await look();
  const [kv] = seen.sidecar!.vaults.kv;
  const cluster = loadConfig(configOf("pool:127.0.0.1:7", "/nonexistent"), {}).cluster;
  const config = { ...seen.config, cluster };
  const withShare = (share: number): string[] => {
    const down = { ...kv!, address: "127.0.0.1:9", state: "down", trouble: "gone", share };
    const sidecar = { ...seen.sidecar!, vaults: { kv: [down], ssm: [] } };
    return findings({ config, targets: [], sidecar }).map(({ code }) => code);
  };
  expect(withShare(0.5)).toEqual(["unreachable"]);
  expect(withShare(0)).toEqual([]);
});

test("a gateway that was killed is a problem, and one that never was is none", async () => {
  const { path, look } = await openSetUp();
  const socket = join(testDirectory(), "gateway.sock");
  const { gateway, ...config } = loadConfig(path, {});
  const asked = async (): Promise<string[]> => {
    const fleet = await askFleet({ ...config, gateway: { ...gateway, socket } });
    return findings({ ...(await look()), ...fleet }).map(({ code, text }) => `${code}: ${text}`);
  };
  expect(await asked()).toEqual([]);
  const bind = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])";
  execFileSync("python3", ["-c", bind, socket]);
  expect(await asked()).toEqual([
    expect.stringMatching(
      /^gateway_down: .*nobody listens on its socket; it was killed: start it again/,
    ),
  ]);
});

test("a gateway that runs and does not answer is a problem", async () => {
  const { look } = await openSetUp();
  const found = findings({ ...(await look()), fleetTrouble: "gateway at /x does not answer" });
  expect(found).toMatchObject([{ code: "gateway_down", severity: "problem" }]);
});

test("what the sidecar says of its vaults is as they answer now", async () => {
  const vault = await openVault();
  const kv = openClient(vault);
  const { socketPath } = await openSidecar({ vaults: { kv, ssm: null } });
  const config = loadConfig(configOf(vault.address, socketPath), {});
  const stateNow = async (): Promise<string | undefined> =>
    (await inspect(config)).sidecar?.vaults.kv[0]?.state;
  expect(await stateNow()).toBe("up");
  const stats = vi.spyOn(kv, "stats").mockRejectedValue(new Error("no answer came"));
  expect(await stateNow()).toBe("down");
  stats.mockRestore();
  expect(await stateNow()).toBe("up");
});
