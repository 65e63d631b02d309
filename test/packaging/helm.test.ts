// Owns the proof that the chart is whole: its values, its schema and its templates agree; where helm is, what it renders starts and is closed to strangers.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { parse } from "yaml";
import { HASH_BYTES, NAMESPACE_BYTES, packKeys, toNamespace } from "../../src/base/block.ts";
import { loadConfig } from "../../src/config/load.ts";
import { askVaults } from "../../src/gateway/process/asked-vaults.ts";
import {
  CHART,
  HAS_HELM,
  KUBE,
  PRINTED,
  chartIn,
  filesOf,
  named,
  workloads,
} from "../support/charts.ts";
import type { Container, Json, Rendered } from "../support/charts.ts";
import { Program, runInside, runProgram } from "../support/command-line.ts";
import { SILENT } from "../support/gateways.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const VALIDATOR = process.env["TIERKV_TEST_VALIDATOR"];
const TIMEOUT_MS = 60_000;
const read = (path: string): string => readFileSync(join(CHART, path), "utf8");

const VALUES = parse(read("values.yaml")) as Json;
const SCHEMA = JSON.parse(read("values.schema.json")) as Json;
const TEMPLATES = readdirSync(join(CHART, "templates")).map((name) => read(`templates/${name}`));

const dir = mkdtempSync(join(tmpdir(), "tierkv-helm-"));
afterAll(() => rmSync(dir, { recursive: true }));
const { helm, render, configOf } = chartIn(dir);

const isPart = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** `vault.replicas` and its like; what is a free map ends there. */
function leaves(value: Json, isEnd: (path: string) => boolean, path = ""): string[] {
  return Object.entries(value).flatMap(([key, inner]) => {
    const at = path === "" ? key : `${path}.${key}`;
    return isPart(inner) && !isEnd(at) ? leaves(inner, isEnd, at) : [at];
  });
}

const FREE = new Set([
  "vault.nodeSelector",
  "engine.nodeSelector",
  "engine.devices",
  "monitoring.labels",
  "vault.extraConfig",
  "engine.extraConfig",
  "gateway.extraConfig",
]);
const LEAVES = leaves(VALUES, (path) => FREE.has(path));

test("a copy of the chart's folder is whole: it has no links", () => {
  const entries = readdirSync(CHART, { recursive: true, withFileTypes: true });
  expect(entries.filter((entry) => entry.isSymbolicLink()).map(({ name }) => name)).toEqual([]);
});

test("the chart is this release's, and brings the dashboards along", () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as Json;
  expect(parse(read("Chart.yaml"))).toMatchObject({ version, appVersion: version });
  expect(readdirSync(join(CHART, "dashboards"))).toContain("operator.json");
});

test("templates use every value and none that is not there", () => {
  const text = TEMPLATES.join("\n");
  const used = [...text.matchAll(/\.Values\.([\w.]+)/g)].map(([, path = ""]) => path);
  const isKnown = (path: string): boolean =>
    LEAVES.some((leaf) => leaf === path || leaf.startsWith(`${path}.`));
  expect(used.filter((path) => !isKnown(path))).toEqual([]);
  // Images are picked by the part's name.
  const isUsed = (leaf: string): boolean => used.includes(leaf) || leaf.startsWith("images.");
  expect(LEAVES.filter((leaf) => !isUsed(leaf))).toEqual([]);
});

test("the schema knows every value, and no other", () => {
  const known = (schema: Json, path = ""): string[] =>
    Object.entries((schema["properties"] ?? {}) as Record<string, Json>).flatMap(([key, inner]) => {
      const at = path === "" ? key : `${path}.${key}`;
      return inner["properties"] === undefined ? [at] : known(inner, at);
    });
  const others = known(SCHEMA).filter((path) => path !== "global");
  expect(others.toSorted()).toEqual(LEAVES.toSorted());
});

const HOW_TO = join(ROOT, "docs", "how-to");
/** Values that lines of the how-to pages set, by line. */
const TYPED = readdirSync(HOW_TO).flatMap((page) =>
  [...readFileSync(join(HOW_TO, page), "utf8").matchAll(/^helm .*$/gm)].map(([line]) => ({
    line,
    sets: [...line.matchAll(/--set (\S+)/g)].flatMap(([, set = ""]) => set.split(",")),
  })),
);

test("lines of the how-to pages set values that the chart has", () => {
  expect(TYPED.length).toBeGreaterThan(3);
  for (const { line, sets } of TYPED)
    for (const set of sets) expect(LEAVES, line).toContain(set.split("=")[0]);
});

/** As a gateway with this configuration asks its only vault for a block that is not there. */
async function lookUpOnce(path: string): Promise<Buffer> {
  const asked = await askVaults(loadConfig(path, {}), SILENT);
  try {
    const [vault, ...others] = asked.vaults();
    expect(others).toEqual([]);
    const keys = packKeys(Buffer.alloc(HASH_BYTES, 1), 0, 0);
    return await vault!.lookup(toNamespace(Buffer.alloc(NAMESPACE_BYTES, 1)), keys, 10_000, 0);
  } finally {
    await asked.close();
  }
}

describe.skipIf(!HAS_HELM)("rendered by helm", () => {
  const everything = ["monitoring.serviceMonitor=true", "monitoring.dashboards=true"];

  test("lint has no complaint, also of other shapes", () => {
    const required = "vault.antiAffinity=required";
    for (const set of [
      "vault.diskGiB=0",
      "engine.enabled=false",
      "gateway.events=false",
      "store.address=valkeys://valkey:6379",
      required,
    ]) {
      expect(helm("lint", "--strict", ".", ...KUBE, "--set", set)).toContain("0 chart(s) failed");
    }
  });

  test("a Valkey of the operator's stands in for vaults, with its login and authority from Secrets", () => {
    const address = "valkeys://valkey.data.svc:6379";
    const store = [`store.address=${address}`, "store.loginSecret=login", "store.caSecret=ca"];
    const all = render(...everything, ...store);
    expect(all.filter(({ metadata: { name } }) => /vault|access/.test(name))).toEqual([]);
    for (const part of ["engine", "gateway"]) {
      expect(configOf(all, part).cluster).toMatchObject({
        kvCold: [{ text: address }],
        storePrefix: "tierkv",
        storeTtlS: 604_800,
        storeTlsCa: "/run/store/ca.crt",
        insecureLan: false,
      });
    }
    for (const { spec } of workloads(all)) {
      const { initContainers = [], containers, volumes } = spec.template!.spec;
      const one = [...initContainers, ...containers].find(({ name }) => name !== "engine")!;
      expect(JSON.stringify(one)).toContain(
        '"VALKEY_PASSWORD","valueFrom":{"secretKeyRef":{"name":"login","key":"password"}}',
      );
      expect(one.volumeMounts).toContainEqual({
        name: "store",
        mountPath: "/run/store",
        readOnly: true,
      });
      expect(volumes).toContainEqual({
        name: "store",
        secret: expect.objectContaining({ secretName: "ca" }) as unknown,
      });
    }
    const clear = render("store.address=valkey://valkey:6379");
    expect(configOf(clear, "engine").cluster).toMatchObject({
      insecureLan: true,
      storeTlsCa: null,
    });
    expect(() => render("store.address=redis://valkey:6379")).toThrow(
      /don't meet the specifications/,
    );
  });

  test("lines of the how-to pages render, and Secrets for a store have the keys that are read", () => {
    for (const { line, sets } of TYPED) expect(render(...sets).length, line).toBeGreaterThan(0);
    const page = readFileSync(join(HOW_TO, "valkey-and-s3.md"), "utf8");
    const made = [...page.matchAll(/^kubectl create secret generic (\S+) (.*)$/gm)].map(
      ([, name = "", rest = ""]) => {
        const keys = [...rest.matchAll(/--from-(?:literal|file)=([^\s=]+)/g)];
        return { name, keys: keys.map(([, key = ""]) => key) };
      },
    );
    const { sets } = TYPED.find(({ line }) => line.includes("store.loginSecret"))!;
    const all = render(...sets);
    const text = JSON.stringify(all);
    expect(made.map(({ name }) => name)).toEqual(["valkey-login", "valkey-ca"]);
    const [login, authority] = made;
    for (const key of login!.keys)
      expect(text).toContain(`"secretKeyRef":{"name":"${login!.name}","key":"${key}"}`);
    expect(text).toContain(`"secretName":"${authority!.name}"`);
    const { storeTlsCa } = configOf(all, "engine").cluster;
    expect(storeTlsCa).toBe(`/run/store/${authority!.keys.join()}`);
  });

  test.each(["vault.replicas=17", "vault.memory=1", "images.pullPolicy=Sometimes"])(
    "%s is refused",
    (set) => {
      expect(() => render(set)).toThrow(/values don't meet the specifications/);
    },
  );

  test.skipIf(VALIDATOR === undefined)(
    "Kubernetes' schemas have every field that is rendered",
    () => {
      const path = join(dir, "rendered.yaml");
      const args = ["-m", "kubernetes_validate", "--strict", "-k", "1.31", path];
      const python = join(ROOT, ".venv", "bin", "python");
      const check = (text: string): string => {
        writeFileSync(path, text);
        const options = {
          env: { PYTHONPATH: VALIDATOR },
          encoding: "utf8",
          stdio: "pipe",
        } as const;
        return execFileSync(python, args, options);
      };
      const pool = "gateway.inferencePool.enabled=true";
      const less = ["vault.diskGiB=0", "engine.enabled=false", "gateway.events=false"];
      const closed = "ipv6=true,gateway.keysSecret=k,gateway.tlsSecret=t";
      for (const set of [everything.join(","), pool, closed, ...less]) {
        const text = helm("template", "x", ".", ...PRINTED, "--set", set);
        expect(check(text)).toContain("passed for resource statefulset/x-tierkv-vault");
        expect(() => check(text.replace("replicas:", "replica:"))).toThrow("Command failed");
      }
    },
    TIMEOUT_MS,
  );

  test("nothing runs as root, writes to its image or takes memory without a limit", () => {
    const all = workloads(render(...everything));
    expect(all.map(({ metadata: { name } }) => name).toSorted()).toEqual([
      "x-tierkv-engine",
      "x-tierkv-gateway",
      "x-tierkv-vault",
    ]);
    for (const { spec } of all) {
      const pod = spec.template!.spec;
      expect(pod.securityContext).toMatchObject({ runAsNonRoot: true, runAsUser: 10_001 });
      expect(spec.template!.metadata.labels).toMatchObject(spec.selector!.matchLabels!);
      for (const container of [...(pod.initContainers ?? []), ...pod.containers]) {
        const { securityContext, resources, name } = container;
        expect(securityContext).toMatchObject({ allowPrivilegeEscalation: false });
        // vLLM's image keeps files of its own beside it.
        if (name !== "engine") expect(securityContext["readOnlyRootFilesystem"]).toBe(true);
        expect(resources.limits["memory"]).toMatch(/^\d+[GM]i$/);
        const volumes = [
          ...pod.volumes,
          ...(spec.volumeClaimTemplates ?? []).map((c) => c.metadata),
        ];
        const known = volumes.map((volume) => volume.name);
        expect(container.volumeMounts.filter((mount) => !known.includes(mount.name))).toEqual([]);
      }
    }
  });

  test("engine and sidecar share the socket's folder, and the arena is in both limits", () => {
    const all = render("engine.arenaGiB=8", "engine.memoryGiB=32", "engine.shmGiB=2");
    const pod = named(all, "StatefulSet", "x-tierkv-engine").spec.template!.spec;
    const sidecar = pod.initContainers!.find(({ name }) => name === "sidecar")!;
    const [engine] = pod.containers;
    expect(sidecar.restartPolicy).toBe("Always");
    const shared = (container: Container): string =>
      container.volumeMounts.find(({ name }) => name === "socket")!.mountPath;
    expect(shared(sidecar)).toBe(shared(engine!));
    expect(sidecar.resources.limits["memory"]).toBe("9Gi");
    expect(engine!.resources.limits["memory"]).toBe("42Gi");
  });

  test("every configuration and every command line is one that the program takes", async () => {
    const all = render("vault.replicas=3", "engine.replicas=2");
    for (const { metadata, data } of all.filter(({ kind }) => kind === "ConfigMap")) {
      const path = join(dir, `${metadata.name}.toml`);
      writeFileSync(path, data?.["tierkv.toml"] ?? "");
      expect(loadConfig(path, {}).path).toBe(path);
    }
    const toml = named(all, "ConfigMap", "x-tierkv-engine").data!["tierkv.toml"]!;
    expect(configOf(all, "engine").cluster.kvCold).toHaveLength(3);
    expect(toml).toContain("x-tierkv-vault-2.x-tierkv-vault.default.svc:50051");
    const own = workloads(all).flatMap(({ spec }) => {
      const { initContainers = [], containers } = spec.template!.spec;
      return [...initContainers, ...containers].filter(({ image }) => !image.includes("engine"));
    });
    for (const { args } of own.filter((container) => container.args !== undefined)) {
      const { exitCode } = await runInside([...args!, "--help"]);
      expect([args, exitCode]).toEqual([args, 0]);
    }
  });

  test("blocks come back bit for bit, unless the chart's user writes otherwise", () => {
    const byDefault = configOf(render(), "engine");
    expect([byDefault.turboQuant.enabled, byDefault.codec.kv]).toEqual([null, "auto"]);
    const lossy = render("engine.extraConfig.turbo_quant.enabled=true");
    expect(configOf(lossy, "engine").turboQuant.enabled).toBe(true);
  });

  /** Files of the Secret that the pods of a part are given. */
  const givenTo = (all: readonly Rendered[], part: string): string[] => {
    const pod = workloads(all).find(({ metadata }) => metadata.name === `x-tierkv-${part}`)!;
    return filesOf(pod.spec.template!.spec).map(({ path }) => path);
  };

  test.each([
    ["vault", ""],
    ["engine", ""],
    ["gateway", ""],
    ["gateway", "gateway.keysSecret=k,gateway.tlsSecret=t"],
    ["gateway", "gateway.keysSecret=k,gateway.tlsSecret=t,gateway.lookupMs=0"],
  ])(
    "a pod of a %s is given the secrets that its configuration names, and no other (%s)",
    (part, set) => {
      const all = render(set);
      const toml = named(all, "ConfigMap", `x-tierkv-${part}`).data!["tierkv.toml"]!;
      const asked = [...toml.matchAll(/"\/run\/access\/([^"]+)"/g)].map(([, name = ""]) => name);
      expect(asked.length).toBeGreaterThan(0);
      expect(givenTo(all, part).toSorted()).toEqual(asked.toSorted());
    },
  );

  test("the gateway alone can be reached from outside, and is two to ten pods by processor time", () => {
    const open = ["gateway.service.type=LoadBalancer", "gateway.lan=true"];
    const all = render(...open, ...everything);
    const services = all.filter(({ kind }) => kind === "Service");
    const types = services.map(({ metadata, spec }) => [metadata.name, spec.type]);
    expect(Object.fromEntries(types)).toStrictEqual({
      "x-tierkv-engine": undefined,
      "x-tierkv-gateway": "LoadBalancer",
      "x-tierkv-gateway-metrics": undefined,
      "x-tierkv-vault": undefined,
    });
    const scaler = named(all, "HorizontalPodAutoscaler", "x-tierkv-gateway").spec;
    expect(scaler).toMatchObject({
      scaleTargetRef: { kind: "Deployment", name: "x-tierkv-gateway" },
      minReplicas: 2,
      maxReplicas: 10,
    });
    expect(named(all, "Deployment", "x-tierkv-gateway").spec).not.toHaveProperty("replicas");
  });

  test(
    "vault, sidecar and the gateway's look-ups start as rendered: the chart's own certificate and tokens open the vault, and no other",
    async () => {
      const all = render();
      const access = named(all, "Secret", "x-tierkv-access").stringData!;
      const place = (part: string, text: string): string =>
        text.replaceAll(/"\/(var|run)\//g, `"${dir}/${part}/$1/`);
      const write = (path: string, text: string, mode = 0o600): string => {
        mkdirSync(dirname(join(dir, path)), { recursive: true, mode: 0o700 });
        writeFileSync(join(dir, path), text, { mode });
        return join(dir, path);
      };
      for (const part of ["vault", "engine", "gateway"])
        for (const key of givenTo(all, part)) write(`${part}/run/access/${key}`, access[key]!);
      const tomlOf = (part: string): string =>
        place(part, named(all, "ConfigMap", `x-tierkv-${part}`).data!["tierkv.toml"]!)
          .replaceAll(/0\.0\.0\.0:\d+/g, "127.0.0.1:0")
          .replace("16GiB", "32MiB")
          .replace("89GiB", "64MiB");
      const vault = new Program(["vault", "--json", "--config", write("v.toml", tomlOf("vault"))]);
      try {
        const { address, class: recordClass } = await vault.firstResult();
        expect(recordClass).toBe("both");
        const beforeVault = (part: string): string =>
          tomlOf(part).replaceAll(/^(kv|ssm)_cold = .*$/gm, `$1_cold = ["${String(address)}"]`);
        const toml = beforeVault("engine");
        const config = write("g.toml", beforeVault("gateway"));
        expect(await lookUpOnce(config)).toEqual(Buffer.alloc(1));
        write("gateway/run/access/read-token", "another-token-that-nobody-knows-0123456789\n");
        await expect(lookUpOnce(config)).rejects.toThrow("does not let this machine in");
        const sidecar = new Program(["sidecar", "--json", "--config", write("s.toml", toml)]);
        try {
          expect(await sidecar.firstResult()).toMatchObject({ event: "ready" });
          const status = await runProgram(["status", "--json", "--config", join(dir, "s.toml")]);
          expect([status.exitCode, status.stdout]).toEqual([
            0,
            expect.stringContaining('"ok":true'),
          ]);
          write("engine/run/access/token", "another-token-that-nobody-knows-0123456789\n");
          const refused = await runProgram(["status", "--json", "--config", join(dir, "s.toml")]);
          expect([refused.exitCode, refused.stdout]).toEqual([
            1,
            expect.stringContaining("does not let this machine in"),
          ]);
        } finally {
          sidecar.signal("SIGTERM");
          await sidecar.ended();
        }
      } finally {
        vault.signal("SIGTERM");
        await vault.ended();
      }
    },
    TIMEOUT_MS,
  );
});
