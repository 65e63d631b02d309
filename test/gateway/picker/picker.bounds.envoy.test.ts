// Owns the proof that the shipped Envoy waits for nobody without end, and cuts nothing that the gateway would not cut.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { Program } from "../../support/command-line.ts";
import { envoyBefore, HAS_ENVOY, WITHOUT_ENVOY } from "../../support/envoys.ts";
import { addressOf, complete, gatewayBefore, testFolder, until } from "../../support/gateways.ts";
import { SimEngine } from "../../support/sim-engine.ts";

const real = test.skipIf(!HAS_ENVOY);
const ANY = addressOf("127.0.0.1:0");
/** Above Envoy's own 1,024, for requests to engines and to the picker. */
const CROWD = 1_100;
const SCENE_MS = 90_000;

real(
  `requests to a picker that stands still get 503, and are served once it runs again${WITHOUT_ENVOY}`,
  async () => {
    const engine = await new SimEngine().start();
    onTestFinished(() => engine.kill());
    const folder = testFolder();
    const config = join(folder, "tierkv.toml");
    const own = `[gateway]\nlisten = "127.0.0.1:0"\next_proc = "127.0.0.1:0"\nengines = ["${engine.name}"]\n`;
    const files = `socket = "${join(folder, "s")}"\nindex_file = "${join(folder, "i")}"\n`;
    writeFileSync(config, own + files);
    const gateway = new Program(["gateway", "--json", "--config", config]);
    onTestFinished(() => gateway.signal("SIGKILL"));
    const { extProc } = (await gateway.firstResult()) as { extProc: string };
    const { url } = await envoyBefore({ extProc });
    expect((await complete(url, false)).code).toBe(200);
    gateway.signal("SIGSTOP");
    // On the connection that the picker has, and on one that is made while it stands still.
    const answers = await Promise.all([complete(url, false), complete(url, true)]);
    answers.push(await complete(url, false));
    expect(answers.map(({ code }) => code)).toEqual([503, 503, 503]);
    gateway.signal("SIGCONT");
    await until(async () => (await complete(url, false)).code === 200);
  },
  SCENE_MS,
);

real(
  `more requests at once than Envoy's own limits are all served${WITHOUT_ENVOY}`,
  async () => {
    const scene = await gatewayBefore([["m"]], { extProc: ANY, inFlightMax: 2 * CROWD });
    const [engine] = scene.engines;
    const { url } = await envoyBefore(scene);
    let open: () => void = () => {};
    engine!.gate = new Promise((resolve) => (open = resolve));
    const before = engine!.asked.length;
    const asked = Array.from({ length: CROWD }, () => complete(url, false));
    await until(() => engine!.asked.length === before + CROWD);
    open();
    const codes = (await Promise.all(asked)).map(({ code }) => code);
    expect(new Set(codes)).toEqual(new Set([200]));
  },
  SCENE_MS,
);

real(
  `connections to engines are closed before vLLM closes them${WITHOUT_ENVOY}`,
  async () => {
    const scene = await gatewayBefore([["m"]], { extProc: ANY });
    const { url, stat } = await envoyBefore(scene);
    expect((await complete(url, false)).code).toBe(200);
    // The simulated engine closes an idle connection after 5 s, as vLLM does.
    await until(async () => (await stat("cluster.engines.upstream_cx_active")) === 0);
    expect(await stat("cluster.engines.upstream_cx_idle_timeout")).toBe(1);
  },
  SCENE_MS,
);

real(
  `an answer may be silent for as long as stream_idle_timeout says, and that is an hour${WITHOUT_ENVOY}`,
  async () => {
    const scene = await gatewayBefore([["m"]], { extProc: ANY });
    let wasAnHour = false;
    const { url } = await envoyBefore(scene, (yaml) => {
      wasAnHour = yaml.includes("stream_idle_timeout: 3600s");
      return yaml.replace("stream_idle_timeout: 3600s", "stream_idle_timeout: 0.5s");
    });
    expect(wasAnHour).toBe(true);
    const [engine] = scene.engines;
    engine!.gate = new Promise(() => {});
    // The setting, and no other, ends a silent answer.
    expect((await complete(url, false)).code).toBe(504);
  },
  SCENE_MS,
);
