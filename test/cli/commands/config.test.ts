// Owns the tests of `tierkv config check` on files that a configuration names: read as a start reads them, and nothing is made.
import { createHash } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { certify } from "../../../src/vault/access/identity.ts";
import { lastLine, runInside } from "../../support/command-line.ts";
import type { Outcome } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";

const TOKEN = "t".repeat(40);
const KEYS_LINE = `team ${createHash("sha256").update("key").digest("hex")}\n`;

interface Checked {
  ok: boolean;
  notes: string[];
  folders: { key: string; folder: string; state: string }[];
  problems: { key?: string; path?: string; message: string }[];
}

class Setting {
  readonly dir = testDirectory();
  readonly path = join(this.dir, "tierkv.toml");

  /** A file of mode 0600; gives its path. */
  file(name: string, text: string): string {
    const path = join(this.dir, name);
    writeFileSync(path, text, { mode: 0o600 });
    return path;
  }

  pair(name: string): { cert: string; key: string } {
    const { certPem, keyPem } = certify({ usage: "server", commonName: name, hosts: ["here"] });
    return { cert: this.file(`${name}.pem`, certPem), key: this.file(`${name}-key.pem`, keyPem) };
  }

  async run(command: readonly string[], toml: string): Promise<Outcome> {
    writeFileSync(this.path, toml);
    const env = { HOME: this.dir, XDG_RUNTIME_DIR: this.dir };
    return await runInside([...command, "--config", this.path], { env });
  }

  async check(toml: string): Promise<Checked> {
    const { stdout } = await this.run(["config", "check", "--json"], toml);
    return JSON.parse(stdout) as Checked;
  }
}

const tomlOf = (sections: Record<string, Record<string, unknown>>): string =>
  Object.entries(sections)
    .map(([name, keys]) => {
      const lines = Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
      return [`[${name}]`, ...lines].join("\n");
    })
    .join("\n\n");

test("files that a start can use are good, and a check makes none", async () => {
  const on = new Setting();
  const { cert, key } = on.pair("server");
  const state = join(on.dir, "state");
  const good = await on.check(
    tomlOf({
      cluster: { role: "kv_cold" },
      vault: { listen: "127.0.0.1:0", state_dir: state },
      gateway: { tls_cert: cert, tls_key: key, keys: on.file("keys", KEYS_LINE) },
      sidecar: { record_keys: on.file("record-keys", `${"ab".repeat(32)}\n`) },
    }),
  );
  expect(good.problems).toEqual([]);
  expect(good.ok).toBe(true);
  expect(existsSync(state)).toBe(false);
});

test("each file that cannot be used is named with its key, its path and what to do, all at once", async () => {
  const on = new Setting();
  const [first, second] = [on.pair("first"), on.pair("second")];
  const absent = join(on.dir, "absent.pem");
  const open = on.file("tokens", `write:${TOKEN}\n`);
  chmodSync(open, 0o644);
  const { ok, problems } = await on.check(
    tomlOf({
      cluster: {
        role: "kv_cold",
        kv_cold: "10.1.1.1:50051",
        tls_ca: absent,
        token: on.file("token", "a b c\n"),
      },
      vault: { listen: "127.0.0.1:0", tokens: open },
      gateway: {
        tls_cert: first.cert,
        tls_key: second.key,
        keys: on.file("keys", "team not-a-digest\n"),
        tokenizers: [`m=${on.dir}`],
      },
      etcd: {
        endpoints: ["127.0.0.1:2379"],
        tls_ca: absent,
        tls_cert: first.cert,
        tls_key: absent,
      },
      sidecar: { record_keys: on.file("record-keys", "abc\n") },
    }),
  );
  expect(ok).toBe(false);
  const found = problems.map(({ key, message }) => `${key}: ${message}`);
  expect(found).toEqual([
    expect.stringMatching(/^\[cluster\] tls_ca: .*absent\.pem: .*correct \[cluster\] tls_ca$/),
    expect.stringMatching(/^\[vault\] tokens: .*tokens: it has mode 644.*chmod 600/),
    expect.stringMatching(/^\[sidecar\] record_keys: .*put a key on each line/),
    expect.stringMatching(/^\[gateway\] keys: .*keys:1: /),
    expect.stringMatching(/^\[gateway\] tokenizers: .*m=.*tokenizer\.json: No such file/),
    expect.stringMatching(/^\[etcd\] tls_ca: .*absent\.pem: /),
    expect.stringMatching(/^\[etcd\] tls_key: .*absent\.pem: /),
  ]);
});

test("a certificate with the key of another, and a token too short, are found in the words of a start", async () => {
  const on = new Setting();
  const [first, second] = [on.pair("first"), on.pair("second")];
  const listen = "127.0.0.1:0";
  const tls = { tls_cert: first.cert, tls_key: second.key };
  const cases: [string, string, string][] = [
    [
      "gateway",
      "cannot be used",
      tomlOf({ gateway: { listen, engines: ["127.0.0.1:9"], ...tls } }),
    ],
    [
      "vault",
      "cannot be used",
      tomlOf({
        cluster: { role: "kv_cold" },
        vault: { listen, tokens: on.file("tokens", `write:${TOKEN}`), ...tls },
      }),
    ],
    [
      "vault",
      "a token of 5 characters",
      tomlOf({
        cluster: { role: "kv_cold" },
        vault: { listen, tokens: on.file("few", "write:short\n") },
      }),
    ],
  ];
  for (const [command, reason, toml] of cases) {
    const started = await on.run([command], toml);
    const checked = await on.run(["config", "check"], toml);
    expect([started.exitCode, checked.exitCode]).not.toContain(0);
    const said = lastLine(started.stderr).replace("tierkv: ", "");
    expect(said).toContain(reason);
    expect(checked.stderr).toContain(said);
  }
});

test("each folder is said to be there or to be made, and none is made", async () => {
  const on = new Setting();
  const data = join(on.dir, "data");
  mkdirSync(data);
  const absent = join(on.dir, "a", "b");
  const toml = tomlOf({
    cluster: { role: "kv_cold", credentials: absent },
    vault: {
      listen: "127.0.0.1:0",
      state_dir: absent,
      data_dir: data,
      archive: `file://${absent}`,
      audit_log: join(absent, "audit.jsonl"),
    },
    sidecar: { arena_dir: data },
    gateway: { index_file: join(absent, "index") },
    receipts: { dir: absent },
  });
  const { ok, folders, problems } = await on.check(toml);
  expect([ok, problems]).toEqual([true, []]);
  const [there, made] = ["there", "to be made"];
  expect(folders).toEqual([
    { key: "[cluster] credentials", folder: absent, state: made },
    { key: "[vault] data_dir", folder: data, state: there },
    { key: "[vault] archive", folder: absent, state: made },
    { key: "[vault] state_dir", folder: absent, state: made },
    { key: "[vault] audit_log", folder: absent, state: made },
    { key: "[sidecar] arena_dir", folder: data, state: there },
    { key: "[gateway] index_file", folder: absent, state: made },
    { key: "[receipts] dir", folder: absent, state: made },
  ]);
  const { stdout } = await on.run(["config", "check"], toml);
  expect(stdout).toContain(`\n  [vault] data_dir: ${data} is there\n`);
  expect(readdirSync(on.dir).toSorted()).toEqual(["data", "tierkv.toml"]);
});

test("each folder that cannot be used is named with its key, its value and what to do", async () => {
  const on = new Setting();
  const file = on.file("a-file", "");
  const below = join(file, "below");
  const absent = join(on.dir, "absent");
  const { ok, problems } = await on.check(
    tomlOf({
      cluster: { role: "kv_cold", credentials: file },
      vault: {
        listen: "127.0.0.1:0",
        state_dir: file,
        data_dir: below,
        archive: `file://${below}-too`,
        audit_log: join(file, "audit.jsonl"),
      },
      sidecar: { arena_dir: file },
      gateway: { tokenizers: [`m=${absent}`, `n=${file}`], index_file: join(below, "index") },
      receipts: { dir: below },
    }),
  );
  expect(ok).toBe(false);
  const why = (key: string, value: string, past: string, code: string, verb: string): unknown =>
    expect.stringMatching(
      `^\\${key}: .*tierkv\\.toml:\\d+: \\${key} = "${value}": it cannot be ${past}: ${code}: .*; ` +
        `name a folder that this user may ${verb}, or make it one$`,
    );
  const found = problems.map(({ key, message }) => `${key}: ${message}`);
  expect(found).toEqual([
    why("[cluster] credentials", file, "read", "ENOTDIR", "read"),
    why("[vault] data_dir", below, "written", "ENOTDIR", "write"),
    why("[vault] archive", `file://${below}-too`, "written", "ENOTDIR", "write"),
    why("[vault] state_dir", file, "written", "ENOTDIR", "write"),
    why("[vault] audit_log", join(file, "audit.jsonl"), "written", "ENOTDIR", "write"),
    why("[sidecar] arena_dir", file, "written", "ENOTDIR", "write"),
    why("[gateway] tokenizers", `m=${absent}`, "read", "ENOENT", "read"),
    why("[gateway] tokenizers", `n=${file}`, "read", "ENOTDIR", "read"),
    why("[gateway] index_file", join(below, "index"), "written", "ENOTDIR", "write"),
    why("[receipts] dir", below, "written", "ENOTDIR", "write"),
  ]);
});

test.each([
  ["sidecar", 0o755, "set another [sidecar] socket"],
  ["gateway", 0o1777, "set another [gateway] socket, such as FOLDER/own/s.sock"],
])("a socket's folder that others may enter is refused as at a start of the %s", async (...of) => {
  const [program, mode, fix] = of;
  const on = new Setting();
  const folder = join(on.dir, "open");
  mkdirSync(folder);
  chmodSync(folder, mode);
  const found = await on.check(tomlOf({ [program]: { socket: join(folder, "s.sock") } }));
  const said = (text: string): string => expect.stringContaining(text) as string;
  expect(found.problems).toMatchObject([
    { key: `[${program}] socket`, message: said(`chmod 700 ${folder}`) },
  ]);
  expect(found.problems).toMatchObject([{ message: said(fix.replace("FOLDER", folder)) }]);
});

test("a vault's folder that others may write is refused as at a start", async () => {
  const on = new Setting();
  const open = (name: string): string => {
    const folder = join(on.dir, name);
    mkdirSync(folder);
    chmodSync(folder, 0o777);
    return folder;
  };
  const [data, archive] = [open("data"), open("archive")];
  const found = await on.check(
    tomlOf({
      cluster: { role: "kv_cold" },
      vault: { listen: "127.0.0.1:0", data_dir: data, archive: `file://${archive}` },
    }),
  );
  expect([found.ok, found.problems]).toMatchObject([
    false,
    [
      ["data_dir", data],
      ["archive", archive],
    ].map(([name, folder]) => ({
      key: `[vault] ${name}`,
      message: expect.stringContaining(
        `it has mode 777, so others may write there; run \`chmod 700 ${folder}\``,
      ) as string,
    })),
  ]);
});

test("sizes beyond the machine's memory or disk are refused, and an archive on the same disk is noted", async () => {
  const on = new Setting();
  const [data, archive] = [join(on.dir, "data"), `file://${join(on.dir, "archive")}`];
  const vault = { listen: "127.0.0.1:50051", data_dir: data, archive };
  const cold = { role: "kv_cold" };
  const huge = await on.check(
    tomlOf({ cluster: cold, vault: { ...vault, max_bytes: "10TB", disk_bytes: "60TB" } }),
  );
  expect(huge.ok).toBe(false);
  expect(huge.problems.map(({ key }) => key)).toEqual(["[vault] max_bytes", "[vault] disk_bytes"]);
  expect(huge.problems[1]?.message).toContain(`the disk of ${data} has`);
  const fit = await on.check(tomlOf({ cluster: cold, vault: { ...vault, disk_bytes: "100MB" } }));
  expect([fit.ok, fit.notes]).toEqual([true, [expect.stringContaining("on the same disk")]]);
  const sizes = { max_bytes: "100MB", tenant_bytes: "200MB" };
  const greedy = await on.check(tomlOf({ cluster: cold, vault: { ...vault, ...sizes } }));
  expect([greedy.ok, greedy.notes[0]]).toEqual([true, expect.stringContaining("no tenant can")]);
  const nowhere = await on.check(
    tomlOf({ cluster: cold, vault: { listen: vault.listen, data_dir: "/proc/tierkv" } }),
  );
  expect([nowhere.ok, nowhere.problems.map(({ key }) => key)]).toEqual([
    false,
    ["[vault] data_dir"],
  ]);
  expect(existsSync(data)).toBe(false);
});

test("a device or a group that this machine has not is named with what to do, and nothing is made", async () => {
  const on = new Setting();
  const device = "/dev/tierkv-test-none";
  const of = async (cluster: Record<string, string>): Promise<string[]> => {
    const { problems } = await on.check(tomlOf({ cluster }));
    return problems.map(({ key, message }) => `${key}: ${message}`);
  };
  const [said, ...others] = await of({ kv_cold: `shm:${device}` });
  expect(said).toContain("there is no such device: load its module or correct its number");
  expect(others).toEqual([]);
  const [ofStates] = await of({ ssm_cold: `shm:${device}` });
  expect(ofStates).toMatch(/^\[cluster\] ssm_cold: .*there is no such device/);
  expect(existsSync(device)).toBe(false);
  const fit = "shm:/dev/shm/tierkv-test-none";
  expect(await of({ kv_cold: fit })).toEqual([]);
  expect(await of({ kv_cold: fit, group: "tierkv-test-none" })).toEqual([
    expect.stringMatching(
      /^\[cluster\] group: .*this machine has no group of that name: write one/,
    ),
  ]);
  expect(await of({ kv_cold: fit, group: "0" })).toEqual([]);
});

test("an address to listen at that this machine has not is noted, and one that it has is not", async () => {
  const setting = new Setting();
  const toml = (host: string): string =>
    `[cluster]\nrole = "kv_cold"\n[vault]\nlisten = "${host}:50051"\ninsecure_lan = true\n`;
  const strange = await setting.check(toml("192.0.2.7"));
  expect([strange.ok, strange.notes]).toEqual([
    true,
    [
      '[vault] listen = "192.0.2.7:50051": this machine does not have the address 192.0.2.7 now; correct it, or bring that address up before the start',
    ],
  ]);
  for (const host of ["127.0.0.1", "127.9.9.9", "0.0.0.0", "[::]", "[0:0::1]", "vault1.lan"]) {
    expect((await setting.check(toml(host))).notes, host).toEqual([]);
  }
});
