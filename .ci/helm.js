// Owns the nightly check of the chart with a real helm: that of PATH, else one that Go builds; without either it says so and checks nothing.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { at } from "./lib/paths.js";

const HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0";
/** Ignored by git, as everything that set-up makes. */
const FOLDER = at(".venv-helm");
const BUILD_TIMEOUT_MS = 60 * 60_000;

const answers = (helm) => spawnSync(helm, ["version"], { stdio: "ignore" }).status === 0;

/** A path, or why there is none. */
function found() {
  const built = join(FOLDER, "helm");
  for (const helm of ["helm", built]) if (answers(helm)) return { helm };
  const env = { ...process.env, GOBIN: FOLDER, GOFLAGS: "-p=1" };
  const options = { env, encoding: "utf8", timeout: BUILD_TIMEOUT_MS };
  const { status, error, stderr } = spawnSync("go", ["install", HELM], options);
  if (status === 0 && existsSync(built)) return { helm: built };
  const said = (stderr ?? "").trim().split("\n").at(-1);
  return { reason: error?.message ?? said };
}

const { helm, reason } = found();
if (helm === undefined) {
  process.stdout.write(
    `helm is not on PATH and cannot be built (${reason}): nothing was rendered\n`,
  );
} else {
  const vitest = at("node_modules", "vitest", "vitest.mjs");
  const test = "test/packaging/helm.test.ts";
  const args = [vitest, "run", "--config", "test/vitest.config.ts", test];
  const env = { ...process.env, TIERKV_TEST_HELM: helm };
  const { status } = spawnSync(process.execPath, args, { cwd: at(), env, stdio: "inherit" });
  process.exitCode = status ?? 1;
}
