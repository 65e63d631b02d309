// Owns a real kube-apiserver for tests, before a real etcd: admitted objects are stored, and no controller acts on them.
import { execFileSync, spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { request } from "node:https";
import { join } from "node:path";
import { freePort, startEtcd } from "./etcd.ts";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest, until } from "./vaults.ts";

const PROGRAM = process.env["TIERKV_TEST_APISERVER"] ?? "";
/** Folders of definitions that are not Kubernetes' own, as one file each. */
const DEFINITIONS = (process.env["TIERKV_TEST_CRDS"] ?? "").split(":").filter(Boolean);
const TOKEN = "of-this-test-alone";

/** Tests that need the server are skipped without it. */
export const HAS_API_SERVER: boolean = PROGRAM !== "" && DEFINITIONS.length > 0;

export interface Answer {
  status: number;
  text: string;
}

export interface ApiServer {
  /** Path of a kubeconfig for helm and other clients. */
  kubeconfig: string;
  call(method: string, path: string, yaml?: string): Promise<Answer>;
}

export async function startApiServer(): Promise<ApiServer> {
  const dir = testDirectory();
  const [etcd, port] = [await startEtcd(), await freePort()];
  const at = (name: string): string => join(dir, name);
  execFileSync("openssl", ["genrsa", "-out", at("accounts.key"), "2048"], { stdio: "ignore" });
  writeFileSync(at("tokens.csv"), `${TOKEN},admin,1,"system:masters"\n`, { mode: 0o600 });
  const args = [
    `--etcd-servers=http://${etcd.endpoint}`,
    `--cert-dir=${dir}`,
    "--bind-address=127.0.0.1",
    `--secure-port=${port}`,
    `--token-auth-file=${at("tokens.csv")}`,
    "--service-account-issuer=https://localhost",
    `--service-account-key-file=${at("accounts.key")}`,
    `--service-account-signing-key-file=${at("accounts.key")}`,
    "--service-cluster-ip-range=10.0.0.0/24",
    "--authorization-mode=RBAC",
    // Disabled, because no controller makes service accounts here.
    "--disable-admission-plugins=ServiceAccount",
  ];
  const child = spawn(PROGRAM, args, { stdio: "ignore" });
  closeAfterTest({ close: () => child.kill("SIGKILL") });
  const call = (method: string, path: string, yaml = ""): Promise<Answer> =>
    answered({ port, ca: at("apiserver.crt"), method, path }, yaml);
  const isReady = (): Promise<boolean> =>
    call("GET", "/readyz").then(
      ({ status }) => status === 200,
      () => false,
    );
  await until(isReady, "the API server");
  for (const path of DEFINITIONS) {
    const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const { status, text } = await call("POST", definitions, readFileSync(path, "utf8"));
    if (status !== 201) throw new Error(`${path}: ${text}`);
    await until(() => isServed(call, JSON.parse(text) as Definition), path);
  }
  const cluster = {
    server: `https://127.0.0.1:${port}`,
    "certificate-authority": at("apiserver.crt"),
  };
  const config = {
    apiVersion: "v1",
    kind: "Config",
    clusters: [{ name: "one", cluster }],
    users: [{ name: "admin", user: { token: TOKEN } }],
    contexts: [{ name: "it", context: { cluster: "one", user: "admin" } }],
    "current-context": "it",
  };
  writeFileSync(at("kubeconfig"), JSON.stringify(config), { mode: 0o600 });
  return { kubeconfig: at("kubeconfig"), call };
}

interface Definition {
  spec: { group: string; names: { plural: string }; versions: { name: string; served: boolean }[] };
}

/** Waits for a definition's kind, because it is served only some time after the definition is stored. */
async function isServed(call: ApiServer["call"], { spec }: Definition): Promise<boolean> {
  const groups = await call("GET", "/apis");
  if (!groups.text.includes(`"${spec.group}"`)) return false;
  for (const { name } of spec.versions.filter(({ served }) => served)) {
    const { text } = await call("GET", `/apis/${spec.group}/${name}`);
    if (!text.includes(`"${spec.names.plural}"`)) return false;
  }
  return true;
}

interface Asked {
  port: number;
  ca: string;
  method: string;
  path: string;
}

function answered({ port, ca, method, path }: Asked, yaml: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/yaml" };
    const options = { host: "127.0.0.1", port, method, path, headers, ca: readFileSync(ca) };
    const asked = request(options, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (more: string) => (text += more));
      response.on("end", () => resolve({ status: response.statusCode ?? 0, text }));
    });
    asked.on("error", reject);
    asked.end(yaml);
  });
}
