#!/usr/bin/env node
// Owns the name `tierkv` on the command line: checks what the program cannot start without, and hands over to it.
import { existsSync, readFileSync } from "node:fs";

const MAIN = new URL("../dist/cli/main.js", import.meta.url);

/** Major and minor version in a text such as ">=20.19". */
function release(text) {
  const [, major, minor] = /(\d+)\.(\d+)/.exec(text);
  return { text: `${major}.${minor}`, rank: Number(major) * 1000 + Number(minor) };
}

/** Why the program cannot even be loaded, or null. */
function complaint() {
  const { engines } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  const least = release(engines.node);
  const { node } = process.versions;
  if (release(node).rank < least.rank) {
    return `Node ${node} is too old: tierKV needs ${least.text} or newer; install it and try again`;
  }
  return existsSync(MAIN) ? null : "the program is not built: run `npm run setup`";
}

/** Ends with one line, as the program does for errors of its own. */
function refuse(reason) {
  process.stderr.write(`tierkv: ${reason} (SYSTEM)\n`);
  process.exitCode = 1;
}

const reason = complaint();
if (reason === null) {
  await import(MAIN.href).catch(({ message }) =>
    refuse(`the program cannot be loaded: ${message}`),
  );
} else {
  refuse(reason);
}
