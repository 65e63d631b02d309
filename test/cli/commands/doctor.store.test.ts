// Owns the proof that `tierkv doctor` names a place that refuses its test records as a problem, with the remedy.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runInside } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { HAS_REDIS, REDIS, ValkeyServer } from "../../support/stores.ts";

test.skipIf(!HAS_REDIS)("a full Redis, and one whose user may not write", async () => {
  const limits = ["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"];
  const server = await ValkeyServer.start(limits, { program: REDIS });
  const [config, password] = ["tierkv.toml", "password"].map((name) => join(testDirectory(), name));
  const doctor = async (more = ""): Promise<string> => {
    const list = `[cluster]\nkv_cold = "${server.address}"\nstore_ttl_s = 1000\n`;
    writeFileSync(config!, `${list}${more}`);
    const { exitCode, stdout } = await runInside(["doctor", "--config", config!]);
    expect([exitCode, stdout]).toEqual([1, expect.stringContaining("mend the first PROBLEM")]);
    return stdout;
  };
  expect(await doctor()).toMatch(
    /PROBLEM: not measured: kv vault at .* it has no room for it .*maxmemory-policy allkeys-lfu/,
  );
  await server.say("CONFIG", "SET", "maxmemory", "0");
  await server.say("ACL", "SETUSER", "reader", "on", ">word", "~*", "+@all", "-set");
  writeFileSync(password!, "word\n", { mode: 0o600 });
  const said = await doctor(`store_user = "reader"\nstore_password = "${password}"\n`);
  expect(said).toMatch(/PROBLEM: not measured: .*NOPERM .*'set'.*ACL SETUSER/);
});
