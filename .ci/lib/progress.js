// Owns set-up's progress display: one line per step, updated on a terminal, sparse in a log.
import { elapsed } from "./process.js";

const TICK_MS = 1_000;
const SPARSE_MS = 30_000;
const NAME_WIDTH = 14;

/** Shows a step as running until `done` is called; `note` sets its latest output. */
export function progress(name) {
  const tty = process.stdout.isTTY;
  const label = `  ${name.padEnd(NAME_WIDTH)}`;
  const startedMs = Date.now();
  let last = "";
  let shownMs = startedMs;
  const draw = () => {
    const spent = elapsed(Date.now() - startedMs);
    if (tty) {
      const line = `${label} ${spent.padEnd(8)} ${last}`;
      process.stdout.write(`\r\u001B[K${line.slice(0, (process.stdout.columns ?? 80) - 1)}`);
    } else if (Date.now() - shownMs >= SPARSE_MS) {
      shownMs = Date.now();
      process.stdout.write(`${label} still working, ${spent}: ${last}\n`);
    }
  };
  if (!tty) process.stdout.write(`${label} ...\n`);
  const timer = setInterval(draw, TICK_MS);
  return {
    note(line) {
      last = line.trim() || last;
    },
    done(word) {
      clearInterval(timer);
      const spent = elapsed(Date.now() - startedMs);
      process.stdout.write(`${tty ? "\r\u001B[K" : ""}${label} ${word}, ${spent}\n`);
    },
  };
}
