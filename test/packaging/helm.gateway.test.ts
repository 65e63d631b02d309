// Owns the proof that the chart's gateway is told of what it weighs: what engines hold and vaults keep; and that it is given no more.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { presetOf } from "../../src/gateway/score/router.ts";
import { HAS_HELM, chartIn, filesOf, named } from "../support/charts.ts";
import type { Json, Pod, Rendered } from "../support/charts.ts";

const dir = mkdtempSync(join(tmpdir(), "tierkv-helm-"));
afterAll(() => rmSync(dir, { recursive: true }));
const chart = chartIn(dir);

describe.skipIf(!HAS_HELM)("rendered by helm", () => {
  /** Parts whose pods reach this port of a part's. */
  const whoReaches = (all: readonly Rendered[], part: string, port: string): unknown[] =>
    named(all, "NetworkPolicy", `x-tierkv-${part}`)
      .spec.ingress!.filter(({ ports }) => ports.some((one) => one.port === port))
      .flatMap(({ from = [] }) => from.map(({ podSelector }) => podSelector?.matchLabels))
      .map((labels) => labels?.["app.kubernetes.io/component"]);

  const podOf = (all: readonly Rendered[]): Pod =>
    named(all, "Deployment", "x-tierkv-gateway").spec.template!.spec;

  const argsOf = (all: readonly Rendered[]): string[] =>
    named(all, "StatefulSet", "x-tierkv-engine").spec.template!.spec.containers[0]!.args!;

  test("the gateway hears what engines publish, and asks the vaults with a token that only reads", () => {
    const all = chart.render("engine.replicas=2", "vault.replicas=3");
    const pod = podOf(all);
    const { gateway, cluster } = chart.configOf(all, "gateway");
    expect(cluster.kvCold.map(({ text }) => text)).toEqual(
      [0, 1, 2].map((n) => `x-tierkv-vault-${n}.x-tierkv-vault.default.svc:50051`),
    );
    expect([gateway.discover?.text, gateway.discoverEvents, gateway.discoverReplays]).toEqual([
      "x-tierkv-engine.default.svc:8000",
      5557,
      5558,
    ]);
    expect(presetOf(gateway.preset, gateway.discoverEvents !== null)).toBe("earliest-token");
    expect(gateway.lookupMs).toBe(5);
    const args = argsOf(all);
    const events = JSON.parse(args[args.indexOf("--kv-events-config") + 1]!) as Json;
    expect(events).toMatchObject({
      enable_kv_cache_events: true,
      publisher: "zmq",
      endpoint: "tcp://*:5557",
      replay_endpoint: "tcp://*:5558",
    });
    const access = named(all, "Secret", "x-tierkv-access").stringData!;
    expect(access["tokens"]).toContain(`read:${access["read-token"]!}`);
    const { projected } = pod.volumes.find(({ name }) => name === "mounted")!;
    expect(projected!.sources).toMatchObject([
      { secret: { name: "x-tierkv-access", optional: true } },
    ]);
    expect(filesOf(pod).map(({ key }) => key)).toEqual(["ca.pem", "read-token"]);
    expect([cluster.tlsCa, cluster.token]).toEqual([
      "/run/access/ca.pem",
      "/run/access/read-token",
    ]);
    const mounts = [...pod.initContainers!, ...pod.containers].map(
      ({ volumeMounts }) => volumeMounts.find(({ name }) => name === "access")?.mountPath,
    );
    expect(mounts).toEqual(["/run/access", "/run/access"]);
    expect(whoReaches(all, "vault", "vault")).toEqual(["engine", "gateway"]);
    expect(whoReaches(all, "engine", "events")).toEqual(["gateway"]);
  });

  test.each(["gateway.events=false", "gateway.lookupMs=0", "gateway.enabled=false"])(
    "with %s no vault is asked, and nothing of it reaches the gateway",
    (set) => {
      const all = chart.render(set);
      expect(whoReaches(all, "vault", "vault")).toEqual(["engine"]);
      const isPublished = set === "gateway.lookupMs=0";
      expect(argsOf(all).includes("--kv-events-config")).toBe(isPublished);
      if (set === "gateway.enabled=false") return;
      const pod = podOf(all);
      const { cluster, gateway } = chart.configOf(all, "gateway");
      expect(pod.initContainers).toBeUndefined();
      expect(filesOf(pod)).toEqual([]);
      expect([cluster.kvCold, gateway.lookupMs]).toEqual([[], 0]);
      expect(gateway.discoverEvents).toBe(isPublished ? 5557 : null);
    },
  );

  test("an InferencePool names the engines' pods and their port, and the gateway as its endpoint picker; none by default", () => {
    expect(chart.render().some(({ kind }) => kind === "InferencePool")).toBe(false);
    const on = "gateway.inferencePool.enabled=true";
    const all = chart.render(on, "gateway.inferencePool.parentGateway=edge", "vault.replicas=1");
    const { spec } = named(all, "InferencePool", "x-tierkv");
    const engine = named(all, "StatefulSet", "x-tierkv-engine").spec.template!;
    const [ref] = [{ kind: "Service", name: "x-tierkv-gateway", port: { number: 9002 } }];
    expect(spec).toEqual({
      selector: {
        matchLabels: named(all, "StatefulSet", "x-tierkv-engine").spec.selector!.matchLabels,
      },
      targetPorts: [{ number: 8000 }],
      endpointPickerRef: { ...ref, failureMode: "FailClose" },
    });
    expect(engine.metadata.labels).toMatchObject(spec.selector!.matchLabels!);
    expect(named(all, "HTTPRoute", "x-tierkv").spec).toMatchObject({
      parentRefs: [{ name: "edge" }],
      rules: [{ backendRefs: [{ kind: "InferencePool", name: "x-tierkv" }] }],
    });
    expect(named(all, "Service", "x-tierkv-gateway").spec).toMatchObject({
      ports: [{ port: 8100 }, { port: 9002, targetPort: "ext-proc" }],
    });
    const { gateway } = chart.configOf(all, "gateway");
    const { extProc, discover, discoverEvents, discoverReplays, engines } = gateway;
    expect([extProc?.text, discover?.text, engines]).toEqual([
      "0.0.0.0:9002",
      "x-tierkv-engine.default.svc:8000",
      [],
    ]);
    expect([discoverEvents, discoverReplays]).toEqual([5557, 5558]);
    expect(() => chart.render("gateway.inferencePool.failureMode=Open")).toThrow(/specifications/);
  });
});
