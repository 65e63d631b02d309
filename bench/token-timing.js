// Owns the figure of timing leaks in a refusal: a nearly correct token against an entirely wrong one.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createLogger } from "../dist/base/log.js";
import { TokenFile } from "../dist/vault/access/tokens.js";
import { auc, describe } from "./lib/figures.js";

const ROUNDS = 100_000;
const WARM_UP = 20_000;
/** Area under the curve: 0.5 is a guess, 1 is certainty. */
const AUC_MAX = 0.55;

export const title = "What the time of a refusal tells of a token";

export function run({ isQuick }) {
  const rounds = isQuick ? ROUNDS / 10 : ROUNDS;
  const dir = mkdtempSync(join(tmpdir(), "tierkv-bench-"));
  try {
    const path = join(dir, "tokens");
    const token = "kJ3x".repeat(11);
    writeFileSync(path, `read:${"r".repeat(44)}\nadmin:${token}\n`, { mode: 0o600 });
    const file = new TokenFile(path, createLogger("bench", { level: "silent" }));
    const near = `${token.slice(0, -1)}!`;
    const far = "!".repeat(token.length);
    const times = { near: [], far: [] };
    for (let round = -WARM_UP; round < rounds; round += 1) {
      // The order alternates, so that the cost of going first is no sign.
      const order = round % 2 === 0 ? ["near", "far"] : ["far", "near"];
      for (const which of order) {
        const begun = process.hrtime.bigint();
        file.roleOf(which === "near" ? near : far);
        const took = Number(process.hrtime.bigint() - begun);
        if (round >= 0) times[which].push(took);
      }
    }
    const area = auc(times.far, times.near);
    return Promise.resolve({
      figures: [
        describe({
          name: "how well the two are told apart (AUC)",
          unit: "",
          value: area,
          floor: { on: "value", most: AUC_MAX },
        }),
      ],
      notes: [`${rounds} refusals of each, in turn; 0.5 is a guess`],
    });
  } finally {
    rmSync(dir, { recursive: true });
  }
}
