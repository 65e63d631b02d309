// Owns `npm run quick`: which tests and checks belong to a room, and which rooms have changed files.
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { VENV_BIN, at } from "./paths.js";
import { cargoTargets, pytestFiles, vitestFiles } from "./suites.js";

const SHIM_TESTS = "python-shim/tests";

/** A room's tests, empty where it has none in a language; `isUnit` is whether a crate's unit tests are among them. */
const nothing = () => ({ vitest: [], cargo: [], pytest: [], crate: null, isUnit: false });

function vitestOf(room) {
  return vitestFiles()
    .filter(({ path, marker }) => marker === null && path.startsWith(`test/${room}/`))
    .map(({ path }) => path);
}

/** Returns the tests of one room: a folder of test/, `shim[/NAME]`, or `crates/CRATE[/NAME]`; null where there is none. */
export function roomOf(room) {
  const [kind, crate, prefix = ""] = room.split("/");
  const found = nothing();
  if (kind === "shim") {
    const start = `${SHIM_TESTS}/test_${crate ?? ""}`;
    found.pytest = pytestFiles(SHIM_TESTS).filter((path) => path.startsWith(start));
  } else if (kind === "crates") {
    const targets = cargoTargets().filter(
      ({ package: name, marker }) => name === `tierkv-${crate}` && marker === null,
    );
    found.crate = existsSync(at("crates", crate ?? "", "Cargo.toml")) ? `tierkv-${crate}` : null;
    found.cargo = targets.map(({ name }) => name).filter((name) => name.startsWith(prefix));
    found.isUnit = found.crate !== null && crate !== "node" && prefix === "";
  } else found.vitest = vitestOf(room);
  const isSome = found.vitest.length + found.pytest.length + found.cargo.length > 0;
  return isSome || found.crate !== null ? found : null;
}

/** Returns the rooms there are, for a message. */
export function roomNames() {
  const folders = vitestFiles().flatMap(({ path }) => {
    const parts = path.split("/").slice(1, -1);
    return parts.map((_, depth) => parts.slice(0, depth + 1).join("/"));
  });
  const crates = cargoTargets().map(({ package: name }) => name.replace("tierkv-", "crates/"));
  return [...new Set([...folders, "shim", ...crates])].toSorted();
}

/** Returns the room of a changed file, or null where no test of a room covers it. */
export function roomOfFile(path) {
  const [top, ...rest] = path.split("/");
  if (top === "python-shim") return "shim";
  if (top === "crates" && rest.length > 1) return `crates/${rest[0]}`;
  if (top !== "src" && top !== "test") return null;
  const folders = rest.slice(0, -1);
  for (let depth = folders.length; depth > 0; depth -= 1) {
    const room = folders.slice(0, depth).join("/");
    if (vitestOf(room).length > 0) return room;
  }
  return null;
}

/** Returns the rooms of all files that differ from the last commit. */
export function changedRooms() {
  const git = (...args) => execFileSync("git", args, { cwd: at(), encoding: "utf8" });
  const changed = git("diff", "--name-only", "HEAD");
  const added = git("ls-files", "--others", "--exclude-standard");
  const paths = `${changed}${added}`.split("\n").filter(Boolean);
  return [...new Set(paths.map(roomOfFile))].filter((room) => room !== null && roomOf(room));
}

/** Returns what stands in the way of a room's tests, or null. */
export const missingFor = ({ pytest }) =>
  pytest.length > 0 && !existsSync(VENV_BIN)
    ? "the shim's tests need an engine; run `npm run setup`"
    : null;
