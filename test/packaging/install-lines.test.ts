// Owns the proof that docs/how-to/packages.md works as printed: its lines run in a root that is thrown away, with an empty home.
// @module-tag nightly
import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { networkInterfaces, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PAGE = readFileSync(join(ROOT, "docs", "how-to", "packages.md"), "utf8");
const BLOCKS = [...PAGE.matchAll(/^```[a-z]*\n(.*?)^```/gms)].map(([, block]) => block!);
/** The page's block of lines for the machine of this heading. */
const linesOf = (heading: string): string =>
  /^```[a-z]*\n(.*?)^```/ms.exec(PAGE.slice(PAGE.indexOf(`\n## ${heading}\n`)))![1]!.trim();
const TARGET = "linux-x64-gnu";
const ADDON = join(ROOT, "crates", "node", `tierkv-core.${TARGET}.node`);
const PYTHON = join(ROOT, ".venv", "bin", "python");
/** Only a hung command reaches it. */
const TIMEOUT_MS = 600_000;
const VAULT_PORT = 50_051;

const base = mkdtempSync(join(tmpdir(), "tierkv-lines-"));
/** Where the new root shows the packages: the home of its user. */
const HOME = "/home/new";
const release = join(base, "release");

/** Registries as this machine's clients know them; nothing else of its environment. */
const registries = Object.entries(process.env).filter(([name]) =>
  /^(PIP|UV|npm_config)_/.test(name),
);
/** The Python that the tests' environment was made with has venv and pip. */
const python = dirname(
  execFileSync(PYTHON, ["-c", "import sys; print(sys._base_executable)"], {
    encoding: "utf8",
  }).trim(),
);

/** Mounts this machine's files under a layer that takes every change. */
const SETUP = `set -e
mkdir -p ${base}/upper${HOME} ${base}/work ${base}/merged
mount -t overlay overlay -o lowerdir=/,upperdir=${base}/upper,workdir=${base}/work ${base}/merged
mount -t proc proc ${base}/merged/proc
mount --rbind /dev ${base}/merged/dev
mount -t tmpfs tmpfs ${base}/merged/run
`;

interface Ran {
  status: number | null;
  text: string;
}

/** Runs lines in the new root, as root; `also`: folders at the front of PATH. */
function inRoot(lines: string, also: readonly string[] = [], isApart = false): Ran {
  const env = {
    ...Object.fromEntries(registries),
    PATH: [...also, python, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"].join(":"),
    HOME,
    // uv trusts what the system trusts, as pip and npm do.
    UV_SYSTEM_CERTS: "1",
  };
  const apart = isApart ? ["--net"] : [];
  const chroot = `exec chroot ${base}/merged /bin/bash -ec 'cd ${HOME}; eval "$1"' bash "$1"`;
  const { status, stdout, stderr } = spawnSync(
    "unshare",
    [
      "--mount",
      "--pid",
      "--fork",
      "--kill-child",
      ...apart,
      "bash",
      "-c",
      SETUP + chroot,
      "bash",
      lines,
    ],
    { env, encoding: "utf8", timeout: TIMEOUT_MS },
  );
  return { status, text: stdout + stderr };
}

function check(lines: string, also: readonly string[] = [], isApart = false): string {
  const { status, text } = inRoot(lines, also, isApart);
  expect(status, `${lines}\n${text}`).toBe(0);
  return text;
}

const canMount = spawnSync("unshare", ["--mount", "bash", "-c", SETUP]).status === 0;
const isIntel = process.arch === "x64";
const why = canMount
  ? "packages.md names the platform x86-64"
  : "no layered root can be mounted here";

/** Commands in the second column of the table of other ways. */
function way(name: string): string[] {
  const row = PAGE.split("\n").find((line) => line.startsWith(`| ${name} |`)) ?? "";
  return [...row.matchAll(/`([^`]+)`/g)].map(([, command]) => command!);
}

const says = (text: string): void => {
  process.stdout.write(`${text}\n`);
};

describe.skipIf(!canMount || !isIntel)(`the lines of packages.md (else skipped: ${why})`, () => {
  beforeAll(() => {
    const script = join(ROOT, "packaging", "release.js");
    const addon = join(base, "addon.node");
    execFileSync("strip", ["-o", addon, ADDON], { timeout: TIMEOUT_MS });
    const args = [script, "--only", TARGET, "--addon", addon, "--folder", release];
    execFileSync(process.execPath, args, { cwd: ROOT, timeout: TIMEOUT_MS, stdio: "pipe" });
    const home = join(base, "upper", HOME);
    mkdirSync(home, { recursive: true });
    for (const name of readdirSync(release)) {
      if (/\.(whl|tgz)$/.test(name)) copyFileSync(join(release, name), join(home, name));
    }
    says(`skipped: ${BLOCKS[0]!.trim()}: run with a core that is compiled already`);
  }, TIMEOUT_MS);

  afterAll(() => rmSync(base, { recursive: true, force: true }));

  test(
    "a vault's machine: every line, and another machine joins by the printed one",
    () => {
      expect(BLOCKS[0]!.trim()).toBe(`npm run release -- --only ${TARGET}`);
      const lines = linesOf("A vault's machine").split("\n");
      const service = lines.findIndex((line) => line === "tierkv service install vault");
      expect(service).toBeGreaterThan(0);
      for (const line of lines.slice(0, service)) check(line);
      says(
        `not as printed: ${lines[service]}: no systemd runs here; its unit is printed, its vault started`,
      );
      const unit = check(`${lines[service]} --dry-run`);
      const [, start = ""] = /^ExecStart=(.+)$/m.exec(unit) ?? [];
      expect(start).toMatch(/^\S+ \/opt\/tierkv\/\S+ vault --config \/etc\/tierkv\/tierkv\.toml$/);
      expect(unit).toContain("StateDirectory=tierkv");
      const [, address = ""] =
        /^listen = "(.+):\d+"/m.exec(check("cat /etc/tierkv/tierkv.toml")) ?? [];
      expect(
        Object.values(networkInterfaces())
          .flat()
          .map((one) => one?.address),
      ).toContain(address);
      const [invite = ""] = lines.slice(service + 1);
      expect(lines.slice(service + 2)).toEqual([]);
      // In a network of its own, so that no other vault has the port.
      const text = check(
        `ip link set lo up; ip addr add ${address}/32 dev lo
mkdir -p /var/lib/tierkv
STATE_DIRECTORY=/var/lib/tierkv ${start} > /tmp/vault.log 2>&1 &
for i in $(seq 300); do grep -q 'vault ready' /tmp/vault.log && break; sleep 0.1; done
{ ${invite}
} > /tmp/invited
export HOME=/home/other; mkdir -p $HOME; cd $HOME
printf '[cluster]\\nrole = "inference"\\n' > tierkv.toml
$(head -n 1 /tmp/invited)
tierkv bench --rounds 1
kill %1; wait %1`,
        [],
        true,
      );
      expect(text).toContain(`joined the kv and ssm vault at ${address}:${VAULT_PORT}`);
      expect(text).toContain("restore, raw records, checked and decoded");
    },
    TIMEOUT_MS,
  );

  test(
    "an engine's machine: the connector and the program are in the environment",
    () => {
      const lines = linesOf("An engine's machine");
      const text = check(`mkdir release; ln -s "$PWD"/*.whl release/
python3 -m venv engine; . engine/bin/activate
${lines}
python -c "import tierkv; print(tierkv.__file__)"; tierkv version`);
      expect(text).toMatch(/engine\/lib\/.*tierkv/);
    },
    TIMEOUT_MS,
  );

  /** Starts a command that runs on, until it says that it is ready. */
  const untilReady = (command: string): string => `rm -f ready
${command} --json > ready 2> log &
for i in $(seq 600); do grep -q '"event":"ready"' ready && break; kill -0 $! || break; sleep 0.1; done
cat log; grep '"event":"ready"' ready; kill %1; wait %1 || true`;

  test(
    "for one user, without a service",
    () => {
      const [make = "", install = "", start = ""] = way("for one user, without a service");
      const wheel = readdirSync(release).find((name) => name.endsWith(".whl"))!;
      check(`${make}\n${install.replace("tierkv-...whl", wheel)}\n${untilReady(start)}`);
    },
    TIMEOUT_MS,
  );

  test(
    "without an installation",
    () => {
      const [command = ""] = way("without an installation");
      check(untilReady(command), [dirname(PYTHON)]);
    },
    TIMEOUT_MS,
  );

  test(
    "with npm",
    () => {
      const [command = ""] = way("with npm");
      const prefix = "export npm_config_prefix=$HOME/npm PATH=$HOME/npm/bin:$PATH";
      check(`${prefix}\n${command}\n${untilReady("tierkv vault")}`, [dirname(process.execPath)]);
    },
    TIMEOUT_MS,
  );
});
