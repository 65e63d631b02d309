// Owns a real etcd for tests, where the machine has one: on the loopback, with its data in the test's directory.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest, until } from "./vaults.ts";

const PROGRAM = process.env["TIERKV_TEST_ETCD"] ?? "";

/** Tests that need etcd are skipped without it. */
export const HAS_ETCD: boolean = PROGRAM !== "";

export interface TestEtcd {
  endpoint: string;
  kill(signal: NodeJS.Signals): void;
  /** Starts with the earlier data. */
  start(tls?: TestEtcdTls): void;
  /** Adds the only user with access. */
  addUser(name: string, password: string): Promise<void>;
}

export interface TestEtcdTls {
  cert: string;
  key: string;
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => {
    server.once("listening", resolve);
  });
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => {
    server.close(resolve);
  });
  return port;
}

export async function startEtcd(): Promise<TestEtcd> {
  const [client, peer] = [await freePort(), await freePort()];
  const peerUrl = `http://127.0.0.1:${peer}`;
  const data = join(testDirectory(), "data");
  let child: ChildProcess;
  const start = (tls?: TestEtcdTls): void => {
    const url = `${tls === undefined ? "http" : "https"}://127.0.0.1:${client}`;
    const args = ["--name", "one", "--data-dir", data, "--log-level", "error"];
    args.push("--listen-client-urls", url, "--advertise-client-urls", url);
    args.push("--listen-peer-urls", peerUrl, "--initial-advertise-peer-urls", peerUrl);
    args.push("--initial-cluster", `one=${peerUrl}`);
    if (tls !== undefined) args.push("--cert-file", tls.cert, "--key-file", tls.key);
    child = spawn(PROGRAM, args, { stdio: "ignore" });
  };
  start();
  closeAfterTest({ close: () => child.kill("SIGKILL") });
  const call = async (path: string, body: object): Promise<boolean> => {
    const init = { method: "POST", body: JSON.stringify(body) };
    return (await fetch(`http://127.0.0.1:${client}/v3/auth/${path}`, init)).ok;
  };
  return {
    endpoint: `127.0.0.1:${client}`,
    kill: (signal) => child.kill(signal),
    start,
    async addUser(name, password) {
      await until(() => call("user/add", { name, password }).catch(() => false), "etcd");
      await call("role/add", { name: "root" });
      await call("user/grant", { user: name, role: "root" });
      if (!(await call("enable", {}))) throw new Error("etcd did not begin to ask who calls");
    },
  };
}
