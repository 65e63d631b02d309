// Owns an engine of a hybrid model beside a real sidecar and two vaults: one group of attention, one of states.
import { makeGroup, FakeEngine, hashesOf } from "./shim-client.ts";
import type { Block } from "./shim-client.ts";
import { openStack } from "./sidecars.ts";
import type { TestStack } from "./sidecars.ts";
import { until } from "./vaults.ts";

const GROUPS = [makeGroup(), makeGroup({ group: 1, class: "ssm" })];
export const ATTENTION = 0;
export const STATES = 1;

export interface Hybrid extends TestStack {
  engine: FakeEngine;
  /** Looks a prompt of these blocks up and restores the held ones. */
  ask(blocks: readonly Block[]): Promise<void>;
  /** Waits until the vaults have the blocks. */
  store(blocks: readonly Block[], group: number): Promise<void>;
}

export async function openHybrid(): Promise<Hybrid> {
  const stack = await openStack({ when: "always" });
  const engine = await FakeEngine.start(stack.sidecar.socketPath, { groups: GROUPS });
  const { counters } = stack.sidecar;
  const ask = async (blocks: readonly Block[]): Promise<void> => {
    const hashes = hashesOf(blocks);
    const groups = GROUPS.map(({ group, class: of }) => ({ group, class: of, hashes, from: 0 }));
    const plan = engine.prefetchGroups(groups);
    await engine.done(plan);
    engine.release(plan);
  };
  const store = async (blocks: readonly Block[], group: number): Promise<void> => {
    const saved = counters.get("blocks_saved") + blocks.length;
    engine.save(blocks, group);
    await until(() => counters.get("blocks_saved") === saved, "the saves");
  };
  return { ...stack, engine, ask, store };
}
