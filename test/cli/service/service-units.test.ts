// Owns the proof that units are those in deploy/, that systemd and a reader of property lists take them, and that odd paths are kept whole.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { servicePath, serviceText, unitName } from "../../../src/cli/service/service-units.ts";
import type { Service } from "../../../src/cli/service/service-units.ts";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const PYTHON = join(ROOT, ".venv", "bin", "python");
const dir = mkdtempSync(join(tmpdir(), "tierkv-units-"));

afterAll(() => rmSync(dir, { recursive: true }));

const TIERKV = ["/usr/local/bin/tierkv"];
const HOME = "/home/somebody";

const VAULT: Service = {
  name: "vault",
  scope: "system",
  manager: "systemd",
  command: TIERKV,
  config: "/etc/tierkv/tierkv.toml",
  runAs: null,
  home: HOME,
};
const SIDECAR: Service = {
  ...VAULT,
  name: "sidecar",
  scope: "user",
  config: `${HOME}/.config/tierkv/tierkv.toml`,
};
const MAC: Service = {
  ...VAULT,
  scope: "user",
  manager: "launchd",
  config: null,
  home: "/Users/somebody",
};

/** What lies in deploy/, for those who install units by other means. */
const DEPLOYED: readonly (readonly [string, Service])[] = [
  ["systemd/tierkv-vault.service", VAULT],
  ["systemd/tierkv-sidecar.service", SIDECAR],
  ["launchd/tierkv.vault.plist", MAC],
];

test.each(DEPLOYED)("deploy/%s is what `tierkv service install` writes", (name, service) => {
  const path = join(ROOT, "deploy", name);
  const text = serviceText(service);
  // `TIERKV_WRITE=1 npx vitest run -c test/vitest.config.ts test/cli/service/service-units.test.ts` writes them.
  if (process.env["TIERKV_WRITE"] === "1") writeFileSync(path, text);
  expect(readFileSync(path, "utf8")).toBe(text);
});

test("a user's configuration follows the home; what systemd would replace stands for itself", () => {
  expect(serviceText(SIDECAR)).toContain(
    "ExecStart=/usr/local/bin/tierkv sidecar --config %h/.config/tierkv/tierkv.toml\n",
  );
  const odd = serviceText({ ...VAULT, command: ['/opt/50% "of" $me/tierkv'], config: null });
  expect(odd).toContain('ExecStart="/opt/50%% \\"of\\" $$me/tierkv" vault\n');
});

test("where the files belong", () => {
  const at = (service: Service): string => servicePath(service, `${service.home}/.config`);
  expect(at(VAULT)).toBe("/etc/systemd/system/tierkv-vault.service");
  expect(at(SIDECAR)).toBe(`${HOME}/.config/systemd/user/tierkv-sidecar.service`);
  expect(at(MAC)).toBe("/Users/somebody/Library/LaunchAgents/tierkv.vault.plist");
  expect(at({ ...MAC, scope: "system" })).toBe("/Library/LaunchDaemons/tierkv.vault.plist");
});

function has(program: string): boolean {
  try {
    execFileSync(program, ["--version"], { stdio: "pipe" });
    return true;
  } catch {
    return false;
  }
}

/** What systemd says against a unit; it knows a key, a value and a program that are not there. */
function verified(service: Service, text: string): string {
  const folder = join(dir, `${service.name}-${service.scope}-${String(service.runAs)}`);
  mkdirSync(folder, { recursive: true });
  const path = join(folder, unitName(service.name));
  writeFileSync(path, text);
  const scope = service.scope === "user" ? ["--user"] : [];
  const script = 'systemd-analyze "$@" 2>&1 || true';
  const args = ["-c", script, "sh", ...scope, "--man=no", "--generators=no", "verify", path];
  const env = { ...process.env, XDG_RUNTIME_DIR: folder };
  const said = execFileSync("sh", args, { encoding: "utf8", env });
  // Of other units of this machine it speaks, too.
  return said
    .split("\n")
    .filter((line) => line.includes("tierkv-"))
    .join("\n");
}

describe.skipIf(!has("systemd-analyze"))("systemd", () => {
  const command = [process.execPath];
  test.each([
    ["a vault of the machine", { ...VAULT, command }],
    ["a vault of somebody", { ...VAULT, command, runAs: "root" }],
    ["a sidecar of a user", { ...SIDECAR, command }],
    ["a sidecar of the machine", { ...SIDECAR, command, scope: "system", runAs: "root" }],
  ] as [string, Service][])("takes %s", (_what, service) => {
    expect(verified(service, serviceText(service))).toBe("");
  });

  test("would say so of a key that is none", () => {
    const service: Service = { ...VAULT, command };
    const broken = serviceText(service).replace("LockPersonality", "LockPersonalty");
    expect(verified(service, broken)).toContain("LockPersonalty");
  });
});

test("a property list says the same to a reader of Apple's format", () => {
  const path = join(dir, "tierkv.vault.plist");
  const service = { ...MAC, command: ["/opt/a & b/tierkv"], config: "/etc/<tierkv>.toml" };
  writeFileSync(path, serviceText({ ...service, runAs: "somebody" }));
  const code =
    "import json, plistlib, sys; print(json.dumps(plistlib.load(open(sys.argv[1], 'rb'))))";
  const read = JSON.parse(execFileSync(PYTHON, ["-c", code, path], { encoding: "utf8" })) as object;
  expect(read).toEqual({
    Label: "tierkv.vault",
    ProgramArguments: ["/opt/a & b/tierkv", "vault", "--config", "/etc/<tierkv>.toml"],
    UserName: "somebody",
    RunAtLoad: true,
    KeepAlive: { SuccessfulExit: false },
    Umask: 0o77,
    ExitTimeOut: 30,
    StandardErrorPath: "/Users/somebody/Library/Logs/tierkv-vault.log",
  });
});
