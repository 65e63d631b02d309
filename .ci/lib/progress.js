// Owns set-up's progress display: a line per finished step; running steps share one line on a terminal and report seldom in a log.
import { readFileSync } from "node:fs";
import { at } from "./paths.js";
import { elapsed } from "./process.js";

const TICK_MS = 1_000;
const SPARSE_MS = 30_000;
const NAME_WIDTH = 14;

const CLEAR = "\r\u001B[K";
/** Steps that run, in order of their start. */
const running = new Set();

/** Crates that cargo may compile, those of other platforms included. */
function crateCount() {
  return readFileSync(at("crates", "Cargo.lock"), "utf8").split("[[package]]").length - 1;
}

function redraw() {
  const steps = [...running].map(({ name, startedMs, last }) =>
    [name, elapsed(Date.now() - startedMs), last].filter(Boolean).join(" "),
  );
  const line = `  ${steps.join(" | ")}`;
  process.stdout.write(`${CLEAR}${line.slice(0, (process.stdout.columns ?? 80) - 1)}`);
}

/** Shows a step as running until `done` is called; `note` sets its latest output. */
export function progress(name) {
  const tty = process.stdout.isTTY;
  const label = `  ${name.padEnd(NAME_WIDTH)}`;
  const step = { name, startedMs: Date.now(), last: "", crates: 0 };
  let shownMs = step.startedMs;
  running.add(step);
  const draw = () => {
    if (tty) redraw();
    else if (Date.now() - shownMs >= SPARSE_MS) {
      shownMs = Date.now();
      const spent = elapsed(shownMs - step.startedMs);
      process.stdout.write(`${label} still working, ${spent}: ${step.last}\n`);
    }
  };
  if (!tty) process.stdout.write(`${label} ...\n`);
  const timer = setInterval(draw, TICK_MS);
  return {
    note(line) {
      const text = line.trim();
      // Warnings of npm about its packages say nothing of the progress.
      if (text === "" || text.startsWith("npm warn")) return;
      const isCrate = text.startsWith("Compiling ");
      if (isCrate) step.crates += 1;
      step.last = isCrate ? `${text} (crate ${step.crates} of about ${crateCount()})` : text;
    },
    done(word) {
      clearInterval(timer);
      running.delete(step);
      const spent = elapsed(Date.now() - step.startedMs);
      process.stdout.write(`${tty ? CLEAR : ""}${label} ${word}, ${spent}\n`);
    },
  };
}
