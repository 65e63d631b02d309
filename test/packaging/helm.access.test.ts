// Owns the proof that the chart's pods end without a cut answer, that it makes no secrets twice, and who reaches the gateway.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { HAS_HELM, KUBE, chartIn, filesOf, named } from "../support/charts.ts";
import type { Pod, Rendered } from "../support/charts.ts";

const dir = mkdtempSync(join(tmpdir(), "tierkv-helm-"));
afterAll(() => rmSync(dir, { recursive: true }));
const chart = chartIn(dir);
const { helm, render, configOf } = chart;

const podOf = (all: readonly Rendered[], kind: string, part: string): Pod =>
  named(all, kind, `x-tierkv-${part}`).spec.template!.spec;

describe.skipIf(!HAS_HELM)("rendered by helm", () => {
  test("without a cluster helm makes no Secret, unless it is asked for one; all else is the same each time", () => {
    const template = (...set: string[]): string =>
      helm("template", "x", ".", ...KUBE, ...set.flatMap((one) => ["--set", one]));
    expect(() => template()).toThrow("set access.existingSecret to a Secret of yours");
    const theirs = template("access.existingSecret=ours");
    expect(theirs).not.toContain("kind: Secret");
    expect(template("access.existingSecret=ours")).toBe(theirs);
    const only = ["--show-only", "templates/access.yaml", "--set", "access.print=true"];
    const printed = helm("template", "x", ".", ...KUBE, ...only);
    expect(printed).toContain("name: x-tierkv-access");
    for (const part of ["vault", "engine"]) {
      const pod = podOf(render("access.existingSecret=ours"), "StatefulSet", part);
      expect(new Set(filesOf(pod).map(({ of }) => of))).toEqual(new Set(["ours"]));
    }
  });

  test("a gateway that ends is not ready while it still takes requests, and may finish its answers", () => {
    const all = render("gateway.leaveSeconds=7", "gateway.drainSeconds=90");
    const { gateway } = configOf(all, "gateway");
    expect([gateway.leaveMs, gateway.drainMs]).toEqual([7_000, 90_000]);
    const pod = podOf(all, "Deployment", "gateway");
    expect(pod.terminationGracePeriodSeconds).toBeGreaterThan(7 + 90);
    const [{ readinessProbe, livenessProbe, ports }] = pod.containers as [Pod["containers"][0]];
    expect(readinessProbe!.httpGet).toEqual({ path: "/healthz", port: "metrics" });
    expect(livenessProbe!.httpGet).toEqual({ path: "/metrics", port: "metrics" });
    const port = ports!.find(({ name }) => name === "metrics")!.containerPort;
    expect([gateway.metricsListen?.text, gateway.metricsLan]).toEqual([`0.0.0.0:${port}`, true]);
  });

  test("an engine that ends leaves the gateways' list first, then finishes its requests", () => {
    const all = render("engine.leaveSeconds=12", "engine.drainSeconds=60");
    const pod = podOf(all, "StatefulSet", "engine");
    const [engine] = pod.containers;
    expect(engine!.args).toContain("--shutdown-timeout=60");
    expect(engine!.lifecycle!.preStop.exec.command).toEqual(["sleep", "12"]);
    expect(pod.terminationGracePeriodSeconds).toBeGreaterThan(12 + 60);
    // The name that the gateway resolves lists no pod that ends.
    const { discover } = configOf(all, "gateway").gateway;
    const service = named(all, "Service", "x-tierkv-engine");
    expect(discover!.host).toBe("x-tierkv-engine.default.svc");
    expect([service.spec.clusterIP, service.spec.publishNotReadyAddresses]).toEqual([
      "None",
      false,
    ]);
  });

  test("a Service that is reached from outside needs keys and TLS, or a word that it needs none", () => {
    const outside = "gateway.service.type=LoadBalancer";
    expect(() => render(outside)).toThrow("set gateway.keysSecret and gateway.tlsSecret");
    expect(() => render(outside, "gateway.keysSecret=k")).toThrow("gateway.tlsSecret");
    const closed = render(outside, "gateway.keysSecret=k", "gateway.tlsSecret=t");
    const { gateway } = configOf(closed, "gateway");
    expect([gateway.lan, gateway.keys, gateway.tlsCert, gateway.tlsKey]).toEqual([
      false,
      "/run/access/gateway-keys",
      "/run/access/tls.crt",
      "/run/access/tls.key",
    ]);
    expect(filesOf(podOf(closed, "Deployment", "gateway"))).toEqual(
      expect.arrayContaining([
        { of: "k", key: "keys", path: "gateway-keys" },
        { of: "t", key: "tls.crt", path: "tls.crt" },
        { of: "t", key: "tls.key", path: "tls.key" },
      ]),
    );
    expect(configOf(render(outside, "gateway.lan=true"), "gateway").gateway.lan).toBe(true);
    // Envoy asks in the clear.
    const secrets = "gateway.keysSecret=k,gateway.tlsSecret=t";
    const envoy = render(secrets, "gateway.inferencePool.enabled=true");
    expect(configOf(envoy, "gateway").gateway.lan).toBe(true);
  });

  test("in the cluster pods of the namespace reach the gateway, or who is named; from outside everybody does", () => {
    const whoReaches = (...set: string[]): unknown =>
      named(render(...set), "NetworkPolicy", "x-tierkv-gateway").spec.ingress!.find(({ ports }) =>
        ports.some(({ port }) => port === "http"),
      )!.from;
    expect(whoReaches()).toEqual([{ podSelector: {} }]);
    const labels = "networkPolicy.gatewayFrom[0].podSelector.matchLabels.app=agents";
    expect(whoReaches(labels)).toEqual([{ podSelector: { matchLabels: { app: "agents" } } }]);
    expect(whoReaches("gateway.service.type=NodePort", "gateway.lan=true")).toBeUndefined();
    expect(
      render("networkPolicy.enabled=false").filter(({ kind }) => kind === "NetworkPolicy"),
    ).toEqual([]);
  });

  test("with ipv6 everything listens on both families, and Services have both", () => {
    const all = render("ipv6=true", "gateway.inferencePool.enabled=true");
    const { gateway } = configOf(all, "gateway");
    const listening = [gateway.listen, gateway.extProc, gateway.metricsListen];
    const { vault } = configOf(all, "vault");
    const { sidecar } = configOf(all, "engine");
    for (const at of [...listening, vault.listen, vault.metricsListen, sidecar.metricsListen]) {
      expect(at?.host).toBe("::");
    }
    expect(podOf(all, "StatefulSet", "engine").containers[0]!.args).toContain("--host=::");
    const services = all.filter(({ kind }) => kind === "Service");
    const policies = new Set(services.map(({ spec }) => spec.ipFamilyPolicy));
    expect([services.length, [...policies]]).toEqual([4, ["PreferDualStack"]]);
    const only4 = render().filter(({ kind }) => kind === "Service");
    expect(new Set(only4.map(({ spec }) => spec.ipFamilyPolicy))).toEqual(new Set(["SingleStack"]));
  });

  test("keys of extraConfig are added to those of the chart, or replace them", () => {
    const all = render(
      "gateway.extraConfig.gateway.in_flight_max=512",
      "gateway.extraConfig.gateway.lookup_ms=9",
      "gateway.extraConfig.log.level=debug",
      "gateway.extraConfig.gateway.allowed_origins={https://a.example,https://b.example}",
      "engine.extraConfig.restore.stall_ms=900",
      "vault.extraConfig.vault.kept_percent=20",
    );
    const { gateway, log } = configOf(all, "gateway");
    expect([gateway.inFlightMax, gateway.lookupMs, log.level]).toEqual([512, 9, "debug"]);
    expect(gateway.allowedOrigins).toEqual(["https://a.example", "https://b.example"]);
    expect(gateway.discover?.port).toBe(8000);
    expect(configOf(all, "engine").restore.stallMs).toBe(900);
    expect(configOf(all, "vault").vault.keptPercent).toBe(20);
    expect(() => render("gateway.extraConfig.gateway=512")).toThrow(/specifications/);
  });
});
