// Owns a real Envoy for tests, with the configuration of deploy/envoy.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { onTestFinished } from "vitest";
import { freePort } from "./etcd.ts";
import { call, testFolder, until } from "./gateways.ts";

/** `node .ci/tools.js envoy` brings it. */
const ENVOY = process.env["TIERKV_TEST_ENVOY"];
const CONFIG = fileURLToPath(new URL("../../deploy/envoy/envoy.yaml", import.meta.url));

export const HAS_ENVOY: boolean = ENVOY !== undefined;
export const WITHOUT_ENVOY = HAS_ENVOY ? "" : " (skipped: no Envoy; node .ci/tools.js envoy)";

export interface TestEnvoy {
  url: string;
  /** Value of one of Envoy's counters or gauges. */
  stat(name: string): Promise<number>;
}

/** The Envoy of deploy/ before a gateway that it asks at `extProc`; `change`: the configuration in part. */
export async function envoyBefore(
  { extProc }: { extProc: string | null },
  change: (yaml: string) => string = (yaml) => yaml,
): Promise<TestEnvoy> {
  const [port, admin] = [await freePort(), await freePort()];
  const [, asked] = extProc!.split(":");
  const given = readFileSync(CONFIG, "utf8");
  const text = change(given)
    .replace("port_value: 9000", `port_value: ${port}`)
    .replace("port_value: 9002", `port_value: ${asked}`);
  const path = join(testFolder(), "envoy.yaml");
  const own = `admin: { address: { socket_address: { address: 127.0.0.1, port_value: ${admin} } } }\n`;
  writeFileSync(path, own + text);
  const argv = ["-c", path, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"];
  const envoy = spawn(ENVOY!, argv, { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  envoy.stderr.on("data", (chunk) => (log += String(chunk)));
  onTestFinished(({ task }) => {
    envoy.kill("SIGKILL");
    if (task.result?.state === "fail") process.stderr.write(log);
  });
  const url = `http://127.0.0.1:${port}`;
  await until(async () => {
    if (envoy.exitCode !== null) throw new Error(`Envoy ended: ${log}`);
    // Whatever the gateway says: it was asked.
    return await call(url, "/v1/models").then(
      ({ code }) => code < 500,
      () => false,
    );
  });
  return {
    url,
    async stat(name) {
      const { text: said } = await call(`http://127.0.0.1:${admin}`, `/stats?filter=^${name}$`);
      return Number(/: (\d+)/.exec(said)?.[1] ?? Number.NaN);
    },
  };
}
