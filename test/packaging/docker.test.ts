// Owns the proof that Dockerfiles are whole, without building them: a parser takes them, what they copy is there, and the program takes what they start.
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { DockerfileParser } from "dockerfile-ast";
import type { Instruction } from "dockerfile-ast";
import { validate } from "dockerfile-utils";
import { describe, expect, onTestFinished, test } from "vitest";
import { TARGETS } from "../../packaging/targets.js";
import { runCommandLine } from "../../src/cli/program.ts";
import { loadConfig } from "../../src/config/load.ts";
import { certificate, secretFile } from "../support/closed-vaults.ts";
import { Program, runProgram } from "../support/command-line.ts";
import { keyFile, testFolder, until } from "../support/gateways.ts";
import { SimEngine } from "../support/sim-engine.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FOLDER = join(ROOT, "deploy", "docker");
const TIMEOUT_MS = 60_000;
const FILES = readdirSync(FOLDER).filter((name) => name.endsWith("Dockerfile"));

interface Stage {
  name: string;
  /** Its own instructions, behind those of the stages it is made from. */
  instructions: Instruction[];
}

/** The stages of a file; one that begins FROM another has that one's instructions, too. */
function stagesOf(text: string): Stage[] {
  const dockerfile = DockerfileParser.parse(text);
  const stages: Stage[] = [];
  for (const instruction of dockerfile.getInstructions()) {
    const [from = "", as, name = from] = instruction.getArguments().map((one) => one.getValue());
    if (instruction.getKeyword() !== "FROM") {
      stages.at(-1)?.instructions.push(instruction);
      continue;
    }
    expect(as === undefined || /^as$/i.test(as)).toBe(true);
    const before = stages.find((stage) => stage.name === from);
    stages.push({ name, instructions: [...(before?.instructions ?? [])] });
  }
  return stages;
}

const last = ({ instructions }: Stage, keyword: string): Instruction | undefined =>
  instructions.findLast((instruction) => instruction.getKeyword() === keyword);

/** Words of a JSON form, as a container would start them. */
function wordsOf(instruction: Instruction | undefined): string[] {
  return JSON.parse(instruction?.getArgumentsContent() ?? "") as string[];
}

const read = (name: string): string => readFileSync(join(FOLDER, name), "utf8");
/** Stages that are run, and not only copied from. */
const RUN = FILES.flatMap((file) =>
  stagesOf(read(file))
    .filter((stage) => last(stage, "CMD") !== undefined)
    .map((stage) => [`${file} ${stage.name}`, stage] as const),
);

test("vault, sidecar, gateway and an engine have images", () => {
  expect(RUN.map(([name]) => name)).toEqual([
    "Dockerfile vault",
    "Dockerfile sidecar",
    "Dockerfile gateway",
    "engine.Dockerfile ${VLLM_IMAGE}",
  ]);
});

test.each(FILES)("%s has no fault that a linter knows", (file) => {
  expect(validate(read(file))).toEqual([]);
  expect(validate(read(file).replace("WORKDIR", "WORKDIRS"))).not.toEqual([]);
  expect(read(file)).not.toMatch(/:latest\b|^ADD /m);
});

test.each(FILES)("what %s copies is let in, and is there", (file) => {
  const allowed = read(`${file}.dockerignore`).split("\n").slice(1).filter(Boolean);
  const copies = [...read(file).matchAll(/^COPY (?!--from)(\S+) \S+$/gm)].map(([, from]) => from!);
  for (const from of copies) {
    // Wheels are there once they were made; their names are those of the platforms.
    if (from === "release/*.whl") continue;
    expect(existsSync(join(ROOT, from)), from).toBe(true);
    expect(allowed).toContain("!deploy/docker/*.toml");
  }
  expect(copies).toContain("release/*.whl");
  expect(allowed).toContain("!release/*.whl");
  const wheels = TARGETS.map(({ wheel }: { wheel: string }) => wheel);
  for (const cpu of ["x86_64", "aarch64"]) expect(wheels).toContain(`manylinux_2_28_${cpu}`);
});

test(
  "the gateway's health check needs no key and no certificate, and fails while no engine answers",
  async () => {
    const [, stage] = RUN.find(([name]) => name === "Dockerfile gateway")!;
    const text = last(stage, "HEALTHCHECK")!.getTextContent();
    const words = JSON.parse(/CMD (\[.*\])$/.exec(text)![1]!) as string[];
    expect(words[0]).toBe("tierkv");
    const engine = await new SimEngine().start();
    onTestFinished(() => engine.kill().catch(() => {}));
    const folder = testFolder();
    const { certPem, keyPem } = certificate("server");
    const config = join(folder, "tierkv.toml");
    const lines = [
      `[gateway]\nlisten = "127.0.0.1:0"\nengines = ["${engine.name}"]`,
      `tls_cert = "${secretFile(certPem)}"\ntls_key = "${secretFile(keyPem)}"`,
      `keys = "${keyFile("team secret")}"`,
      `socket = "${join(folder, "s")}"\nindex_file = "${join(folder, "i")}"\n`,
    ];
    writeFileSync(config, lines.join("\n"));
    const env = { TIERKV_CONFIG: config };
    const check = async (): Promise<number | null> =>
      (await runProgram(words.slice(1), { env })).exitCode;
    expect(await check()).toBe(1);
    const gateway = new Program(["gateway", "--json"], { env });
    onTestFinished(() => gateway.signal("SIGKILL"));
    expect((await gateway.firstResult())["url"]).toMatch(/^https:/);
    expect(await check()).toBe(0);
    await engine.kill();
    await until(async () => (await check()) === 1);
  },
  TIMEOUT_MS,
);

describe.each(RUN)("%s", (_name, stage) => {
  test("runs as nobody in particular, and says how it is", () => {
    const [user = ""] =
      last(stage, "USER")
        ?.getArguments()
        .map((one) => one.getValue()) ?? [];
    expect(user).toMatch(/^[1-9]\d{3,}:[1-9]\d{3,}$/);
    expect(last(stage, "HEALTHCHECK")?.getTextContent()).toMatch(/health/);
  });

  test("starts with words and a configuration that the program takes", async () => {
    const words = [...wordsOf(last(stage, "ENTRYPOINT")), ...wordsOf(last(stage, "CMD"))];
    const copied = stage.instructions.map((one) => one.getTextContent()).join("\n");
    const [, config = ""] = /deploy\/docker\/(\S+\.toml) \/etc\/tierkv/.exec(copied) ?? [];
    expect(loadConfig(join(FOLDER, config), {}).path).toBe(join(FOLDER, config));
    if (words[0] === "vllm") {
      const at = words.indexOf("--kv-transfer-config");
      expect(JSON.parse(words[at + 1] ?? "")).toMatchObject({ kv_connector: "TierKVConnector" });
      return;
    }
    const err: string[] = [];
    const io = {
      out: () => {},
      err: (line: string) => void err.push(line),
      progress: () => {},
      isInteractive: false,
      isTerminal: false,
      columns: Infinity,
      readAll: () => Promise.resolve(""),
      ask: () => Promise.resolve(""),
      env: {},
    };
    const exitCode = await runCommandLine(words.slice(1), io, () => Promise.resolve(0));
    expect([words[0], exitCode, err]).toEqual(["tierkv", 0, []]);
  });
});
