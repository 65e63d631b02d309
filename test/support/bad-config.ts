// Owns the test of bad configurations: each row is refused within a second with line, key, value and fix.
import { expect, test } from "vitest";
import { checkConfig } from "../../src/config/check.ts";

const FILE = "/etc/tierkv.toml";
const REFUSAL_MS_MAX = 1000;

export interface Bad {
  toml: string;
  line: number;
  code: string;
  /** Parts of the one-line message: key, value, fix. */
  says: string[];
}

export function bad(toml: string, line: number, code: string, ...says: string[]): Bad {
  return { toml, line, code, says };
}

/** Makes one test per row. */
export function testRefusals(table: Readonly<Record<string, Bad>>): void {
  test.each(Object.entries(table))("refuses %s", (_name, { toml, line, code, says }) => {
    const startMs = performance.now();
    const { config, problems } = checkConfig(toml, FILE, {});
    expect(performance.now() - startMs).toBeLessThan(REFUSAL_MS_MAX);
    expect(config).toBeNull();
    const [problem] = problems;
    expect(problem?.code).toBe(code);
    expect(problem?.exitCode).toBe(2);
    const message = problem?.message ?? "";
    expect(message).toMatch(new RegExp(`^${FILE.replace(".", "\\.")}:${line}(:\\d+)?: `));
    for (const text of says) expect(message).toContain(text);
    expect(message).not.toContain("\n");
  });
}
