// Owns the proof that vaults register in a real etcd and are followed there: one that ends is out, and while etcd is gone nothing changes.
import { createSecureServer } from "node:http2";
import type { AddressInfo } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { EtcdSource, register, vaultAt } from "../../src/discovery/etcd.ts";
import type { EtcdOptions } from "../../src/discovery/etcd.ts";
import { certificate, secretFile } from "../support/closed-vaults.ts";
import { HAS_ETCD, startEtcd } from "../support/etcd.ts";
import { followVaults, startPooled } from "../support/pooled.ts";
import type { Following } from "../support/pooled.ts";
import { closeAfterTest, logger, until } from "../support/vaults.ts";

const withEtcd = test.skipIf(!HAS_ETCD);
if (!HAS_ETCD)
  console.warn("skipped: TIERKV_TEST_ETCD names no etcd; `node .ci/tools.js etcd` does");

const LEASED_MS = 120_000;

function follow(options: EtcdOptions): { addresses(): string[] } {
  let now: string[] = [];
  const source = closeAfterTest(new EtcdSource(options, vaultAt));
  source.follow((list) => {
    now = list.map(({ address, class: of }) => `${address} ${of}`).toSorted();
  });
  return { addresses: () => now };
}

withEtcd(
  "F84 vaults that register are followed; a dead one's lease takes it out; etcd killed and started again changes nothing",
  async () => {
    const etcd = await startEtcd();
    const more = `[etcd]\nendpoints = ["${etcd.endpoint}"]\n`;
    const vaults = [await startPooled({ more }), await startPooled({ more })];
    const [a, b] = vaults;
    const cluster = `[etcd]\nendpoints = ["${etcd.endpoint}"]\n[cluster]\nkv_cold = "etcd:vaults"\n`;
    const sidecars = [await followVaults(cluster), await followVaults(cluster)];
    const untilShared = async (
      who: readonly (typeof a)[],
      what: string,
      all: readonly Following[] = sidecars,
    ): Promise<void> => {
      for (const sidecar of all) {
        await until(async () => {
          const owning = [...(await sidecar.seen())].filter(([, { share }]) => share > 0);
          const wanted = who.map((vault) => vault!.address).toSorted();
          const seen = owning.map(([address, { source }]) => `${source} ${address}`).toSorted();
          return seen.join() === wanted.map((address) => `etcd ${address}`).join();
        }, what);
      }
    };
    await untilShared([a, b], "both vaults");

    etcd.kill("SIGKILL");
    const late = await startPooled({ more });
    await untilShared([a, b], "the view of before");
    etcd.start();
    await untilShared([a, b, late], "the one that started meanwhile");

    process.kill(b!.pid, "SIGKILL");
    await untilShared([a, late], "its lease to run out");
    process.kill(late.pid, "SIGTERM");
    await untilShared([a], "the one that said goodbye");
    const [one, two] = await Promise.all(sidecars.map((sidecar) => sidecar.seen()));
    expect([...one!.keys()].toSorted()).toEqual([...two!.keys()].toSorted());
  },
  LEASED_MS,
);

withEtcd("F84 etcd with TLS and a user: who is neither hears and writes nothing", async () => {
  const warnings: string[] = [];
  const onWarning = ({ message }: Error): void => void warnings.push(message);
  process.on("warning", onWarning);
  onTestFinished(() => void process.off("warning", onWarning));
  const etcd = await startEtcd();
  const login = { user: "root", password: "of the test" };
  await etcd.addUser(login.user, login.password);
  etcd.kill("SIGKILL");
  const ca = certificate("ca");
  const server = certificate("server", ca);
  etcd.start({ cert: secretFile(server.certPem), key: secretFile(server.keyPem) });

  // The first endpoint never answers, the second one does.
  const base = { endpoints: ["127.0.0.1:1", etcd.endpoint], prefix: "/t/", logger };
  const tls = { caPem: Buffer.from(ca.certPem), certPem: null, keyPem: null };
  const named = { ...base, tls, login };
  const foreign = { ...tls, caPem: Buffer.from(certificate("ca").certPem) };
  const others: EtcdOptions[] = [
    { ...named, login: null },
    { ...named, login: { ...login, password: "another" } },
    { ...named, tls: null },
    { ...named, tls: foreign },
  ];
  const told = (of: EtcdOptions): EtcdSource => {
    const source = closeAfterTest(new EtcdSource(of, vaultAt));
    source.follow(() => {});
    return source;
  };
  const doubted = told({ ...named, tls: foreign });
  await until(() => doubted.failure.includes("[etcd] tls_ca"), "the key that mends it");
  const refused = others.map(follow);
  const [anybody] = others as [EtcdOptions];
  closeAfterTest(register(anybody, "10.0.0.1:1", "kv"));
  const known = follow(named);
  const own = closeAfterTest(register(named, "10.0.1.1:1", "both"));
  await until(() => known.addresses().length > 0, "who may");
  // Another turn of those who may not, meanwhile.
  const more = closeAfterTest(register(named, "10.0.1.2:1", "kv"));
  await until(() => known.addresses().length > 1, "one more");
  expect(known.addresses()).toEqual(["10.0.1.1:1 both", "10.0.1.2:1 kv"]);
  expect(refused.map((one) => one.addresses())).toEqual([[], [], [], []]);
  await own.close();
  await until(() => known.addresses().length === 1, "the one that ended");
  await more.close();
  // An endpoint by IP address sends no server name.
  expect(warnings).toEqual([]);
});

test.each([
  ["127.0.0.1", ["127.0.0.1"], false],
  ["127.0.0.1", ["10.0.0.1", "etcd"], true],
  ["localhost", ["localhost"], false],
  ["localhost", ["another.test"], true],
])("an endpoint %s and a certificate for %j: refused %s", async (host, hosts, isRefused) => {
  const ca = certificate("ca");
  const { certPem, keyPem } = certificate("server", ca, { hosts });
  const server = createSecureServer({ cert: certPem, key: keyPem });
  await new Promise<void>((resolve) => server.listen(0, resolve));
  closeAfterTest({ close: () => server.close() });
  const { port } = server.address() as AddressInfo;
  const tls = { caPem: Buffer.from(ca.certPem), certPem: null, keyPem: null };
  const source = new EtcdSource(
    { endpoints: [`${host}:${port}`], tls, login: null, prefix: "/", logger },
    vaultAt,
  );
  closeAfterTest(source).follow(() => {});
  await until(() => source.failure !== "", "the end of a call");
  expect(/altnames|does not match/i.test(source.failure), source.failure).toBe(isRefused);
});
