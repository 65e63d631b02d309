// Owns the proof that a real API server takes the chart: installed, grown and removed by helm, every field one that it knows.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { parseAllDocuments } from "yaml";
import { HAS_API_SERVER, startApiServer } from "../support/api-server.ts";
import type { ApiServer } from "../support/api-server.ts";
import { HAS_ETCD } from "../support/etcd.ts";

const CHART = fileURLToPath(new URL("../../deploy/helm/tierkv", import.meta.url));
/** With an example for KServe. */
const PAGE = fileURLToPath(new URL("../../docs/how-to/kubernetes.md", import.meta.url));
const HELM = process.env["TIERKV_TEST_HELM"] ?? "";
const TIMEOUT_MS = 180_000;
const ALL = [
  "monitoring.serviceMonitor=true",
  "monitoring.dashboards=true",
  "gateway.inferencePool.enabled=true",
  "gateway.inferencePool.parentGateway=edge",
];

/** `--validate` alone does not let templates look anything up. */
const PRINT = ["--set", "access.print=true"];

interface Thing {
  apiVersion: string;
  kind: string;
  metadata: { name: string };
}

function helm(kubeconfig: string, ...args: string[]): string {
  const env = { ...process.env, KUBECONFIG: kubeconfig, HELM_DRIVER: "configmap" };
  return execFileSync(HELM, args, { cwd: CHART, env, encoding: "utf8", timeout: TIMEOUT_MS });
}

/** Where things of a kind are made, as the server itself says. */
async function pathOf(server: ApiServer, { apiVersion, kind }: Thing): Promise<string> {
  const group = apiVersion.includes("/") ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
  const { text } = await server.call("GET", group);
  const { resources } = JSON.parse(text) as { resources: { name: string; kind: string }[] };
  const found = resources.find((one) => one.kind === kind && !one.name.includes("/"));
  return `${group}/namespaces/default/${found?.name ?? kind}`;
}

describe.skipIf(HELM === "" || !HAS_ETCD || !HAS_API_SERVER)("a real API server", () => {
  test(
    "admits every field that is rendered, and no other",
    async () => {
      const server = await startApiServer();
      const set = ALL.flatMap((one) => ["--set", one]);
      const text = helm(server.kubeconfig, "template", "x", ".", "--validate", ...set, ...PRINT);
      const [, example = ""] =
        /```yaml\n(apiVersion: serving[\s\S]*?)```/.exec(readFileSync(PAGE, "utf8")) ?? [];
      const all = [...parseAllDocuments(text), ...parseAllDocuments(example)];
      const documents = all.filter((one) => one.contents !== null);
      const kinds = new Set<string>();
      for (const document of documents) {
        const thing = document.toJS() as Thing;
        kinds.add(thing.kind);
        const path = `${await pathOf(server, thing)}?dryRun=All&fieldValidation=Strict`;
        const { status, text: said } = await server.call("POST", path, document.toString());
        expect([thing.kind, status, status === 201 ? "" : said]).toEqual([thing.kind, 201, ""]);
        if (thing.kind !== "StatefulSet") continue;
        const wrong = document.toString().replace("replicas:", "replica:");
        const refused = await server.call("POST", path, wrong);
        expect([refused.status, refused.text]).toEqual([
          400,
          expect.stringContaining("unknown field"),
        ]);
      }
      expect([...kinds]).toEqual(
        expect.arrayContaining([
          "StatefulSet",
          "NetworkPolicy",
          "ServiceMonitor",
          "InferencePool",
          "HTTPRoute",
          "InferenceService",
        ]),
      );
    },
    TIMEOUT_MS,
  );

  test(
    "installed, grown by a vault and removed: tokens stay the same, and outlive the chart",
    async () => {
      const server = await startApiServer();
      const read = async (path: string): Promise<{ status: number; said: string }> => {
        const { status, text } = await server.call("GET", path);
        return { status, said: text };
      };
      const vault = "/apis/apps/v1/namespaces/default/statefulsets/kv-tierkv-vault";
      const access = "/api/v1/namespaces/default/secrets/kv-tierkv-access";
      const replicas = async (): Promise<unknown> =>
        (JSON.parse((await read(vault)).said) as { spec?: { replicas: number } }).spec?.replicas;
      const tokens = async (): Promise<unknown> =>
        (JSON.parse((await read(access)).said) as { data?: unknown }).data;
      const set = ALL.flatMap((one) => ["--set", one]);
      helm(server.kubeconfig, "install", "kv", ".", ...set);
      expect(await replicas()).toBe(2);
      const first = await tokens();
      expect(Object.keys(first as object)).toEqual(
        expect.arrayContaining(["read-token", "token", "tokens", "vault.key"]),
      );
      helm(server.kubeconfig, "upgrade", "kv", ".", ...set, "--set", "vault.replicas=3");
      expect([await replicas(), await tokens()]).toEqual([3, first]);
      helm(server.kubeconfig, "uninstall", "kv");
      expect([(await read(vault)).status, await tokens()]).toEqual([404, first]);
    },
    TIMEOUT_MS,
  );
});
