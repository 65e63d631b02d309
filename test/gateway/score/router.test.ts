// Owns the proof that requests go where their prompt is held, unless waiting there takes longer than computing elsewhere.
import { expect, onTestFinished, test } from "vitest";
import { splitAddress } from "../../../src/base/hosts.ts";
import type { Preset } from "../../../src/config/config.ts";
import { call, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer, Scene } from "../../support/gateways.ts";
import { tokensOf } from "../../support/sim-engine.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

type Ask = (prompt: string, more?: object) => Promise<Answer & { by: string; hit: string }>;

interface Known extends Scene {
  publishers: SimPublisher[];
  ask: Ask;
}

const asking =
  (url: string): Ask =>
  async (prompt, more = {}) => {
    const body = JSON.stringify({ model: "m", prompt, stream: true, ...more });
    const headers = { "content-type": "application/json" };
    const answer = await call(url, "/v1/completions", { body, headers });
    const by = String(answer.headers["x-gateway-destination-endpoint-served"]);
    return { ...answer, by, hit: String(answer.headers["x-tierkv-hit-tokens"]) };
  };

const live = (url: string, count: number): Promise<void> =>
  until(async () => {
    const { text: metrics } = await call(url, "/metrics");
    return [...metrics.matchAll(/events_live\{.*\} 1$/gm)].length === count;
  });

/** Engines that publish what completions leave in their caches. */
async function knowing(
  preset: Preset | null,
  count = 2,
  ttftMs: number | null = null,
): Promise<Known> {
  const publishers = await Promise.all(
    Array.from({ length: count }, () => new SimPublisher({ blockSize: 16 }).start()),
  );
  onTestFinished(() => {
    for (const publisher of publishers) publisher.stop();
  });
  const scene = await gatewayBefore(
    publishers.map(() => ["m"]),
    { preset, ttftMs },
    publishers,
  );
  for (const [at, engine] of scene.engines.entries()) {
    engine.onPrompt = (tokens) => publishers[at]!.take(tokens);
  }
  await live(scene.url, count);
  return { ...scene, publishers, ask: asking(scene.url) };
}

const text = (seed: string, chars = 800): string => seed.repeat(chars).slice(0, chars);

/** Until the gateway has heard what the engine published of this prompt. */
async function heard({ url, publishers }: Known): Promise<void> {
  await until(async () => {
    for (const publisher of publishers) await publisher.publish([]);
    const metrics = (await call(url, "/metrics")).text;
    const blocks = [...metrics.matchAll(/indexed_blocks\{.*gpu.*\} (\d+)$/gm)].map(([, n]) =>
      Number(n),
    );
    return publishers.every((publisher, at) => publisher.blocks.size === blocks[at]);
  });
}

test.each<Preset>(["earliest-token", "prefix-weighted"])(
  "%s: a prompt goes where it is held, with its receipt",
  async (preset) => {
    const known = await knowing(preset);
    const first = await known.ask(text("ab"));
    expect(first.hit).toBe("0/800");
    expect(first.headers["x-tierkv-preset"]).toBe(preset);
    await heard(known);
    for (const end of ["x", "yy", "zzz"]) {
      const again = await known.ask(text("ab") + end);
      expect(again.by).toBe(first.by);
      expect(again.hit).toBe(`800/${800 + end.length}`);
    }
    expect(Number(first.headers["x-tierkv-predicted-ttft-ms"])).toBeGreaterThan(0);
  },
);

test("the last token is always computed: a whole prompt counts a block less", async () => {
  const known = await knowing("earliest-token");
  await known.ask(text("ab"));
  await heard(known);
  expect((await known.ask(text("ab"))).hit).toBe("784/800");
});

test("another tenant's prompt is not taken for held", async () => {
  const known = await knowing("earliest-token");
  await known.ask(text("ab"));
  await heard(known);
  expect((await known.ask(text("ab"), { cache_salt: "other" })).hit).toBe("0/800");
});

test("earliest-token: where the holder is busy for longer than computing takes, another computes", async () => {
  const known = await knowing(null);
  const { by } = await known.ask(text("ab"));
  await heard(known);
  const holder = known.engines.find(({ name }) => name === by)!;
  const other = known.engines.find((engine) => engine !== holder)!;
  let open: () => void = () => {};
  holder.gate = new Promise((resolve) => (open = resolve));
  // Held there as well, and long: what waits before the next prompt is more than its 800 tokens.
  const long = known.ask(text("ab") + text("long", 20_000));
  await until(() => holder.asked.length === 2);
  expect((await known.ask(`${text("ab")}!`)).by).toBe(other.name);
  open();
  expect((await long).by).toBe(holder.name);
});

test("earliest-token: prompts that begin alike go together before the engine has told of the first", async () => {
  const known = await knowing("earliest-token");
  await known.ask(text("ab"));
  await heard(known);
  let open: () => void = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  for (const engine of known.engines) engine.gate = gate;
  const asked = (): number => known.engines.reduce((sum, engine) => sum + engine.asked.length, 0);
  const first = known.ask(text("cd"));
  await until(() => asked() === 2);
  const second = known.ask(`${text("cd")}!`);
  await until(() => asked() === 3);
  open();
  expect((await second).by).toBe((await first).by);
  expect((await second).hit).toBe("800/801");
});

test("prompts that came before are not turned into tokens again, and token ids never", async () => {
  const known = await knowing("earliest-token");
  await known.ask(text("ab"));
  await known.ask(text("ab"));
  const tokens = Array.from({ length: 64 }, (_none, at) => at);
  const body = JSON.stringify({ model: "m", prompt: tokens, stream: true });
  const answer = await call(known.url, "/v1/completions", { body });
  expect(answer.headers["x-tierkv-hit-tokens"]).toBe("0/64");
  const asked = known.engines.reduce((sum, { tokenized }) => sum + tokenized, 0);
  expect(asked).toBe(1);
});

test("another salt's prompt is turned into tokens anew, because a quick answer would tell that somebody asked it", async () => {
  const known = await knowing("earliest-token");
  for (const cache_salt of ["one", "two", "one"]) await known.ask(text("ab"), { cache_salt });
  expect(known.engines.reduce((sum, { tokenized }) => sum + tokenized, 0)).toBe(2);
});

test("a prompt that the engine cuts goes by load, because its blocks are not those of the whole", async () => {
  const known = await knowing("earliest-token");
  const { headers } = await known.ask(text("ab"), { truncate_prompt_tokens: 100 });
  expect(headers["x-tierkv-reason"]).toBe("load");
});

test("chats are routed by what the template makes of them; pictures, and texts that are short, by load", async () => {
  const known = await knowing("earliest-token");
  const chat = (content: unknown): Promise<Answer> =>
    call(known.url, "/v1/chat/completions", {
      body: JSON.stringify({ model: "m", messages: [{ role: "user", content }] }),
      headers: { "content-type": "application/json" },
    });
  expect((await chat(text("ab"))).headers["x-tierkv-hit-tokens"]).toMatch(/^0\/8\d\d$/);
  const picture = [{ type: "image_url", image_url: { url: text("data:") } }];
  for (const content of [picture, "short"]) {
    const answer = await chat(content);
    expect(answer.code).toBe(200);
    expect(answer.headers["x-tierkv-hit-tokens"]).toBeUndefined();
  }
});

test("an engine whose events are lost is not trusted with what it held", async () => {
  const known = await knowing("earliest-token");
  const { by } = await known.ask(text("ab"));
  await heard(known);
  const at = known.engines.findIndex(({ name }) => name === by);
  known.publishers[at]!.stop();
  await until(async () => {
    const { text: metrics } = await call(known.url, "/metrics");
    return metrics.includes(`tierkv_gateway_events_live{engine="${by}"} 0`);
  });
  // What was just sent there is still believed for a moment; then nothing is.
  await until(async () => (await known.ask(`${text("ab")}.`)).hit === "0/801");
  await known.publishers[at]!.start();
});

/** Until the gateway has heard of so many blocks in vaults, by engine. */
const vaulted = ({ url }: Known, blocks: number[]): Promise<void> =>
  until(async () => {
    const { text: metrics } = await call(url, "/metrics");
    const told = [...metrics.matchAll(/indexed_blocks\{.*vault.*\} (\d+)$/gm)];
    return told.map(([, n]) => Number(n)).join() === blocks.join();
  });

test("earliest-token: where the holder is busy, one that can pull from a vault comes before one that computes", async () => {
  const known = await knowing("earliest-token", 3);
  const [first, second] = [text("ab"), text("cd")];
  const [holder] = known.engines;
  const [holds, pulls] = known.publishers;
  for (const prompt of [first, second]) {
    await holds!.take(tokensOf(prompt));
    await holds!.tellVault(tokensOf(prompt));
  }
  await vaulted(known, [100, 0, 0]);
  await pulls!.tellVault(tokensOf(text("other")));
  await vaulted(known, [100, 50, 0]);
  await heard(known);
  let open: () => void = () => {};
  holder!.gate = new Promise((resolve) => (open = resolve));
  const long = known.ask(first + text("long", 20_000));
  await until(() => holder!.asked.length === 1);

  const pulled = await known.ask(`${first}!`);
  expect(pulled.by).toBe(known.engines[1]!.name);
  expect([pulled.hit, pulled.headers["x-tierkv-vault-tokens"]]).toEqual(["0/801", "800"]);
  expect(pulled.headers["x-tierkv-reason"]).toBe("vault");
  // What no vault holds any more is computed.
  await holds!.tellVault(tokensOf(second), false);
  await vaulted(known, [50, 50, 0]);
  const computed = await known.ask(`${second}!`);
  expect(computed.by).not.toBe(holder!.name);
  expect([computed.hit, computed.headers["x-tierkv-vault-tokens"]]).toEqual(["0/801", "0"]);
  open();
  expect((await long).by).toBe(holder!.name);
});

test("two gateways before the same engines know the same, without a word to each other", async () => {
  const known = await knowing("earliest-token");
  const engines = known.engines.map(({ name }) => ({ ...splitAddress(name), text: name }));
  const given = { preset: "earliest-token", engines } as const;
  const other = await gatewayBefore([], given, known.publishers);
  await live(other.url, 2);
  for (const prompt of [text("ab"), text("cd")]) {
    const { by, hit } = await known.ask(prompt);
    expect(hit).toBe("0/800");
    await heard(known);
    await heard({ ...known, url: other.url });
    const again = await asking(other.url)(`${prompt}!`);
    expect([again.by, again.hit]).toEqual([by, "800/801"]);
  }
});

test("an adapter's blocks are its own", async () => {
  const publisher = await new SimPublisher({ blockSize: 16 }).start();
  onTestFinished(() => publisher.stop());
  const { url } = await gatewayBefore([["m", "ad@m"]], { preset: "earliest-token" }, [publisher]);
  await live(url, 1);
  const prompt = Array.from({ length: 64 }, (_none, at) => at);
  const stored = {
    type: "BlockStored",
    block_hashes: [1n, 2n, 3n, 4n],
    parent_block_hash: null,
    token_ids: prompt,
    block_size: 16,
    lora_id: 1,
    medium: "GPU",
    lora_name: "ad",
  };
  const hitOf = async (model: string): Promise<unknown> => {
    const body = JSON.stringify({ model, prompt });
    const headers = { "content-type": "application/json" };
    const answer = await call(url, "/v1/completions", { body, headers });
    return answer.headers["x-tierkv-hit-tokens"];
  };
  expect(await hitOf("m")).toBe("0/64");
  await publisher.publish([stored]);
  await until(async () => {
    await publisher.publish([]);
    return (await call(url, "/metrics")).text.includes('tier="gpu"} 4');
  });
  // What was just sent is believed to be held as well: of the base model, its own blocks.
  expect(await hitOf("ad")).toBe("48/64");
});

test("with ttft_ms: a prompt that would be answered too late everywhere is shed, a short one is taken", async () => {
  const known = await knowing("earliest-token", 1, 3000);
  const [engine] = known.engines;
  await known.ask(text("ab"));
  await heard(known);
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  // Two seconds each, at the rate that is assumed of an engine.
  const first = known.ask(text("long", 20_000));
  await until(() => engine!.asked.length === 2);
  const late = await known.ask(text("gnol", 20_000));
  expect([late.code, late.headers["retry-after"]]).toEqual([429, "1"]);
  expect((await call(known.url, "/metrics")).text).toContain('refused_total{reason="late"} 1');
  const short = known.ask(text("cd"));
  await until(() => engine!.asked.length === 3);
  open();
  expect([(await first).code, (await short).code]).toEqual([200, 200]);
});

test.each<Preset>(["least-load", "ring", "round-robin"])(
  "%s with ttft_ms: what would be answered too late everywhere is shed, too",
  async (preset) => {
    const known = await knowing(preset, 1, 3000);
    const [engine] = known.engines;
    let open: () => void = () => {};
    engine!.gate = new Promise((resolve) => (open = resolve));
    // By its size: two seconds each, at the rate that is assumed of an engine.
    const first = known.ask(text("long", 80_000));
    await until(() => engine!.asked.length === 1);
    expect((await known.ask(text("gnol", 80_000))).code).toBe(429);
    open();
    expect((await first).code).toBe(200);
  },
);
