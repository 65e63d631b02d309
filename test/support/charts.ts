// Owns the chart as helm renders it, for tests.
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseAllDocuments } from "yaml";
import type { Config } from "../../src/config/config.ts";
import { loadConfig } from "../../src/config/load.ts";

export const CHART: string = fileURLToPath(new URL("../../deploy/helm/tierkv", import.meta.url));
/** Provided by `node .ci/tools.js chart`, together with the other tools of these tests. */
const HELM = process.env["TIERKV_TEST_HELM"] ?? "helm";
const TIMEOUT_MS = 60_000;
/** Given explicitly, because a helm built by go does not know its cluster's version. */
export const KUBE: readonly string[] = ["--kube-version", "1.31.0"];
/** With the Secret that helm makes where it sees a cluster. */
export const PRINTED: readonly string[] = [...KUBE, "--set", "access.print=true"];

export type Json = Record<string, unknown>;

export interface Container {
  name: string;
  image: string;
  args?: string[];
  ports?: { name: string; containerPort: number }[];
  lifecycle?: { preStop: { exec: { command: string[] } } };
  readinessProbe?: Probe;
  livenessProbe?: Probe;
  restartPolicy?: string;
  securityContext: Json;
  resources: { limits: Json };
  volumeMounts: { name: string; mountPath: string }[];
}

export interface Probe {
  httpGet: { path: string; port: string; scheme?: string };
}

interface FromSecret {
  name: string;
  optional?: boolean;
  items: { key: string; path: string }[];
}

export interface Pod {
  terminationGracePeriodSeconds: number;
  securityContext: Json;
  initContainers?: Container[];
  containers: Container[];
  volumes: {
    name: string;
    configMap?: { name: string };
    emptyDir?: Json;
    secret?: { secretName: string; items: { key: string; path: string }[] };
    projected?: { sources: { secret: FromSecret }[] };
  }[];
}

export interface Rendered {
  kind: string;
  metadata: { name: string; labels: Json };
  data?: Record<string, string>;
  stringData?: Record<string, string>;
  spec: {
    type?: string;
    clusterIP?: string;
    ipFamilyPolicy?: string;
    publishNotReadyAddresses?: boolean;
    selector?: { matchLabels?: Json };
    template?: { metadata: { labels: Json }; spec: Pod };
    volumeClaimTemplates?: { metadata: { name: string } }[];
    ingress?: { ports: { port: string }[]; from?: { podSelector?: { matchLabels: Json } }[] }[];
  };
}

export interface Chart {
  helm(...args: string[]): string;
  render(...set: string[]): Rendered[];
  /** Returns the parsed configuration of a part. */
  configOf(all: readonly Rendered[], part: string): Config;
}

export const HAS_HELM: boolean = hasHelm();

function hasHelm(): boolean {
  try {
    execFileSync(HELM, ["version"], { stdio: "pipe" });
    return true;
  } catch {
    return false;
  }
}

/** Runs helm on the chart, with helm's own folders in `dir`. */
export function chartIn(dir: string): Chart {
  const env = { ...process.env, HELM_CACHE_HOME: dir, HELM_CONFIG_HOME: dir, HELM_DATA_HOME: dir };
  const stdio = ["ignore", "pipe", "pipe"] as ["ignore", "pipe", "pipe"];
  const helm = (...args: string[]): string =>
    execFileSync(HELM, args, { cwd: CHART, env, encoding: "utf8", stdio, timeout: TIMEOUT_MS });
  return {
    helm,
    render(...set) {
      const options = set.flatMap((one) => ["--set", one]);
      return parseAllDocuments(helm("template", "x", ".", ...PRINTED, ...options))
        .map((document) => document.toJS() as Rendered | null)
        .filter((document) => document !== null);
    },
    configOf(all, part) {
      const path = join(dir, `${part}.toml`);
      writeFileSync(path, named(all, "ConfigMap", `x-tierkv-${part}`).data?.["tierkv.toml"] ?? "");
      return loadConfig(path, {});
    },
  };
}

/** Files of Secrets that a pod is given, as Secret, key and name of the file. */
export const filesOf = ({ volumes }: Pod): { of: string; key: string; path: string }[] =>
  volumes.flatMap(({ secret, projected }) => [
    ...(secret?.items ?? []).map((item) => ({ of: secret?.secretName ?? "", ...item })),
    ...(projected?.sources ?? []).flatMap(({ secret: { name, items } }) =>
      items.map((item) => ({ of: name, ...item })),
    ),
  ]);

export const workloads = (all: readonly Rendered[]): Rendered[] =>
  all.filter(({ spec }) => spec?.template !== undefined);

export const named = (all: readonly Rendered[], kind: string, name: string): Rendered =>
  all.find((one) => one.kind === kind && one.metadata.name === name)!;
