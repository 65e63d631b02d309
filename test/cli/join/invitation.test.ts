// Owns the proof of where the line of a first start is shown (to a person on a terminal, in no pipe), and of wrong values of `invite`.
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { announce } from "../../../src/cli/join/invitation.ts";
import { decodeJoinCode } from "../../../src/cli/join/join-code.ts";
import { Call } from "../../../src/cli/shell/call.ts";
import { processIo } from "../../../src/cli/shell/io.ts";
import { openSecurity } from "../../../src/vault/access/identity.ts";
import { runInside } from "../../support/command-line.ts";
import { testConfig, testDirectory } from "../../support/sidecars.ts";
import { logger } from "../../support/vaults.ts";

const SECRET = "s".repeat(43);

function announced(isTerminal: boolean, json: boolean): { stateDir: string; said: string } {
  const stateDir = join(testDirectory(), "state");
  const vault = { ...testConfig({ socket: "/none" }).vault, stateDir };
  openSecurity(vault, logger);
  const lines: string[] = [];
  const io = { ...processIo(), isTerminal, out: (line: string): void => void lines.push(line) };
  announce(new Call({ json }, io), vault, { host: "10.1.2.3", port: 5 }, SECRET);
  return { stateDir, said: lines.join("\n") };
}

test.each([true, false])(
  "a terminal is shown the line, and no file keeps it (JSON: %s)",
  (json) => {
    const { stateDir, said } = announced(true, json);
    const [, line = ""] = /(tierkv join [\w.-]+)/.exec(said) ?? [];
    expect(decodeJoinCode(line)).toMatchObject({ address: "10.1.2.3:5", secret: SECRET });
    if (!json)
      expect(said).toMatch(/^to let one engine's machine in, .* within a day:\ntierkv join /);
    expect(() => statSync(join(stateDir, "invitation"))).toThrow("ENOENT");
  },
);

test.each([true, false])(
  "a pipe is shown where it is, in a file of mode 0600 (JSON: %s)",
  (json) => {
    const { stateDir, said } = announced(false, json);
    const path = join(stateDir, "invitation");
    expect(said).toContain(path);
    expect(said).not.toContain("tkv1.");
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(decodeJoinCode(readFileSync(path, "utf8")).secret).toBe(SECRET);
  },
);

test.each([
  ["--for", "soon"],
  ["--uses", "0"],
])(
  "invite names a wrong value of %s first, where no vault is configured, too",
  async (...words) => {
    const { exitCode, stderr } = await runInside(["invite", ...words], { env: { HOME: "/none" } });
    const [option, value] = words;
    expect([exitCode, stderr]).toEqual([2, expect.stringContaining(`${option} = "${value}": `)]);
  },
);
