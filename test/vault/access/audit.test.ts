// Owns the proof of the audit log: its events, no secrets, its bounds, and no harm when it fails.
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test, vi } from "vitest";
import type * as Limits from "../../../src/base/limits/access.ts";
import { AUDIT_FILES_KEPT, AUDIT_LINES_PER_S_MAX } from "../../../src/base/limits/access.ts";
import { VaultChannel } from "../../../src/client/vault/channel.ts";
import { AuditLog, AuditWatch } from "../../../src/vault/access/audit.ts";
import { vaultService } from "../../../src/wire/service.ts";
import {
  certificate,
  connectTo,
  EMPTY_BYTES,
  openClosedVault,
  rawCall,
  TOKENS,
} from "../../support/closed-vaults.ts";
import type { ClosedVault } from "../../support/closed-vaults.ts";
import { NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, logger, SOON_MS, until } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/access.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  AUDIT_FILE_BYTES_MAX: 2_000,
}));

type Line = Record<string, unknown>;

function linesOf(path: string): Line[] {
  const lines = readFileSync(path, "utf8").trimEnd().split("\n");
  return lines.filter(Boolean).map((line) => JSON.parse(line) as Line);
}

function channelTo(vault: ClosedVault, token: string): VaultChannel {
  const [certPem, keyPem] = [null, null];
  const serverName = "127.0.0.1";
  const caPem = Buffer.from(vault.caPem);
  const security = { caPem, certPem, keyPem, serverName, token: () => token };
  return closeAfterTest(new VaultChannel(vault.address, security));
}

const OPTIONS = { timeoutMs: SOON_MS, signal: new AbortController().signal };

test("says who was refused, who flushed, which namespaces came; no secret and no whole hash", async () => {
  const vault = await openClosedVault();
  const wrong = { token: "x".repeat(40) };
  await rawCall(connectTo(vault, wrong), "/tierkv.v1.Vault/Lookup", wrong, EMPTY_BYTES);
  const channel = channelTo(vault, TOKENS.admin);
  const name = { namespace: NAMESPACE, model: "org/model" };
  await channel.unary(vaultService.Name, name, OPTIONS);
  await channel.unary(vaultService.Name, name, OPTIONS);
  await channel.unary(vaultService.Flush, { namespace: NAMESPACE, recordClass: 2 }, OPTIONS);
  await expect(
    channelTo(vault, TOKENS.read).unary(vaultService.Name, name, OPTIONS),
  ).rejects.toThrow("needs write");

  const lines = linesOf(vault.auditLog);
  const hash = NAMESPACE.toString("hex");
  expect(lines.map(({ event }) => event)).toEqual([
    "started",
    "auth_failed",
    "namespace_new",
    "admin_call",
    "role_missing",
  ]);
  expect(lines[1]).toMatchObject({
    call: "Lookup",
    peer: expect.stringMatching(/^127\.0\.0\.1:\d+$/) as string,
  });
  expect(lines[2]).toMatchObject({ model: "org/model", namespace: hash.slice(0, 8) });
  const flushed = { namespaces: [hash.slice(0, 8)], class: "ssm" };
  expect(lines[3]).toMatchObject({ call: "Flush", role: "admin", ...flushed });
  expect(lines[4]).toMatchObject({ call: "Name", role: "read", needed: "write" });
  const text = readFileSync(vault.auditLog, "utf8");
  for (const secret of [...Object.values(TOKENS), wrong.token, hash])
    expect(text).not.toContain(secret);
  expect(statSync(vault.auditLog).mode & 0o777).toBe(0o600);
});

test("the vault's owner reads the reason of a refusal; the refused client does not", async () => {
  const vault = await openClosedVault();
  const { ca } = vault;
  const path = "/tierkv.v1.Vault/Lookup";
  const shown = [
    {},
    { token: "x".repeat(40) },
    { certificate: certificate("client", ca, { toDays: -1 }) },
    { certificate: certificate("client", certificate("ca")) },
    { certificate: certificate("client", ca, { unit: "root" }) },
  ];
  const heard = new Set<string>();
  for (const each of shown) {
    heard.add((await rawCall(connectTo(vault, each), path, each, EMPTY_BYTES)).message);
  }
  expect(heard.size).toBe(1);
  const reasons = linesOf(vault.auditLog).flatMap(({ reason }) => reason ?? []);
  expect(reasons).toEqual([
    "no token, and no certificate of a known role",
    "a token that is not one of the vault's",
    "certificate: CERT_HAS_EXPIRED",
    expect.stringMatching(/^certificate: (?:UNABLE_TO|CERT_SIGNATURE)/) as string,
    "no token, and no certificate of a known role",
  ]);
});

test("growing counters are logged, wherever they are counted", () => {
  const path = join(testDirectory(), "audit.jsonl");
  let counts: Record<string, number> = { quarantined: 0, refused_bad_record: 1, lookups: 1 };
  const watch = new AuditWatch(new AuditLog(path, logger), () => counts);
  watch.look();
  counts = { ...counts, quarantined: 2, lookups: 9 };
  watch.close();
  watch.close();
  expect(linesOf(path)).toMatchObject([
    { event: "records_bad", counter: "refused_bad_record", more: 1 },
    { event: "records_quarantined", counter: "quarantined", more: 2 },
  ]);
});

test("files are bounded, in number, too, and an older one goes on being added to", () => {
  const path = join(testDirectory(), "deep", "audit.jsonl");
  const now = vi.spyOn(performance, "now");
  let second = 0;
  now.mockImplementation(() => (second += 1000));
  new AuditLog(path, logger).record("started", { address: "first" });
  const audit = new AuditLog(path, logger);
  for (let index = 0; index < 200; index += 1)
    audit.record("auth_failed", { index, peer: "x".repeat(50) });
  now.mockRestore();
  const names = readdirSync(dirname(path)).sort();
  expect(names).toHaveLength(1 + AUDIT_FILES_KEPT);
  const all = names.map((name) => join(dirname(path), name));
  for (const file of all) expect(statSync(file).size).toBeLessThanOrEqual(2_000);
  expect(linesOf(path).at(-1)).toMatchObject({ index: 199 });
});

test("a flood is counted instead of written", () => {
  const path = join(testDirectory(), "audit.jsonl");
  const now = vi.spyOn(performance, "now").mockReturnValue(1_000);
  const audit = new AuditLog(path, logger);
  for (let index = 0; index < AUDIT_LINES_PER_S_MAX + 7; index += 1)
    audit.record("auth_failed", {});
  now.mockReturnValue(2_000);
  audit.record("auth_failed", {});
  now.mockRestore();
  const files = readdirSync(dirname(path)).sort().reverse();
  const lines = files.flatMap((name) => linesOf(join(dirname(path), name)));
  expect(lines).toHaveLength(AUDIT_LINES_PER_S_MAX + 1);
  expect(lines.at(-1)).toMatchObject({ suppressed: 7 });
});

test("a place that cannot be written ends the start; one that is lost later harms nothing", async () => {
  const file = join(testDirectory(), "file");
  writeFileSync(file, "");
  expect(() => new AuditLog(join(file, "audit.jsonl"), logger)).toThrow("[vault] audit_log");
  const vault = await openClosedVault();
  await until(() => linesOf(vault.auditLog).length > 0, "the first line");
  const nothing = new AuditLog(null, logger);
  nothing.record("started");
});

test("strangers crowd out no events of others, and administration is always logged", () => {
  const path = join(testDirectory(), "audit.jsonl");
  const now = vi.spyOn(performance, "now").mockReturnValue(1_000);
  const audit = new AuditLog(path, logger);
  for (let index = 0; index < 10; index += 1) {
    for (let call = 0; call < AUDIT_LINES_PER_S_MAX; call += 1) audit.record("auth_failed", {});
    for (let call = 0; call < 6; call += 1) audit.record("admin_call", { index, call });
    audit.record("role_missing", {});
  }
  now.mockRestore();
  const files = readdirSync(dirname(path)).sort().reverse();
  const events = files.flatMap((name) => linesOf(join(dirname(path), name)));
  const count = (event: string): number => events.filter((line) => line["event"] === event).length;
  expect([count("admin_call"), count("role_missing")]).toEqual([60, 10]);
});
