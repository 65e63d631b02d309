// Owns the proof that a member of a real etcd that lost the majority is left within seconds, by those who follow and those who register.
import { expect, test } from "vitest";
import { EtcdCalls, KV } from "../../src/discovery/etcd-calls.ts";
import { EtcdSource, register, vaultAt } from "../../src/discovery/etcd.ts";
import type { EtcdOptions } from "../../src/discovery/etcd.ts";
import { startThreeMembers } from "../support/etcd-three.ts";
import type { MemberName } from "../support/etcd-three.ts";
import { closeAfterTest, logger, until } from "../support/vaults.ts";

const SCENE_MS = 120_000;

test(
  "F84 behind a member cut off from the majority, lists and leases move on to the others; nobody waits for its return",
  async ({ skip }) => {
    const etcd = startThreeMembers()!;
    skip(etcd === null, "no etcd (TIERKV_TEST_ETCD), or no network namespaces");
    const through = (...names: MemberName[]): EtcdOptions => ({
      endpoints: names.map((name) => etcd.endpoint(name)),
      prefix: "/t/",
      tls: null,
      login: null,
      logger,
    });
    const isServed = (name: MemberName): Promise<boolean> => {
      const calls = new EtcdCalls(through(name), 0);
      const asked = { key: Buffer.from("x"), range_end: Buffer.alloc(0), limit: 1 };
      const answered = calls.unary(KV.Range, asked).then(
        () => true,
        () => false,
      );
      return answered.finally(() => calls.close());
    };
    for (const name of ["one", "two", "three"] as const) await until(() => isServed(name), name);

    let seen: string[] = [];
    const source = closeAfterTest(new EtcdSource(through("three", "one", "two"), vaultAt));
    source.follow((list) => (seen = list.map(({ address }) => address).toSorted()));
    // Every list of a follower that has only the member that is cut off.
    const lists: string[][] = [];
    const alone = closeAfterTest(new EtcdSource(through("three"), vaultAt));
    alone.follow((list) => lists.push(list.map(({ address }) => address)));
    closeAfterTest(register(through("three", "two"), "10.0.0.1:1", "kv"));
    await until(() => seen.length === 1 && lists.length > 0, "the vault registered at the third");

    etcd.pull("three");
    await until(async () => !(await isServed("three")), "the third to notice");
    closeAfterTest(register(through("one"), "10.0.0.2:1", "kv"));
    await until(() => seen.includes("10.0.0.2:1"), "what the majority registered");
    // Its lease went on at another member, or was given anew.
    await until(() => seen.length === 2, "the vault registered at the third, and the new one");
    expect(lists.at(-1)).toEqual(["10.0.0.1:1"]);

    etcd.plug("three");
    await until(() => lists.at(-1)?.length === 2, "the third's own followers");
  },
  SCENE_MS,
);
