// Owns a real etcd of three members for tests, each in a network namespace of its own, whose cable to the others can be pulled.
import { spawn, spawnSync } from "node:child_process";
import { join } from "node:path";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest } from "./vaults.ts";

const PROGRAM = process.env["TIERKV_TEST_ETCD"] ?? "";
const ISOLATED = ["-rnpf", "--mount-proc", "--kill-child"];
const TRY = "ip link add br0 type bridge && ip link add cable type veth peer name eth0";

/** Clients reach members by sockets in the file system, which a pulled cable does not touch. */
const SCENE = `
set -e
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
all=one=http://10.78.0.1:2380,two=http://10.78.0.2:2380,three=http://10.78.0.3:2380
at=0
for name in one two three; do
  at=$((at + 1))
  unshare -n sleep infinity &
  holder=$!
  while [ "$(readlink /proc/$holder/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  ip link add cable-$name type veth peer name eth0 netns $holder
  ip link set cable-$name master br0 up
  nsenter -t $holder -n ip link set lo up
  nsenter -t $holder -n ip addr add 10.78.0.$at/24 dev eth0
  nsenter -t $holder -n ip link set eth0 up
  nsenter -t $holder -n "$ETCD" --name $name --data-dir data-$name --log-level error \\
    --listen-client-urls unix://$name:0 --advertise-client-urls unix://$name:0 \\
    --listen-peer-urls http://10.78.0.$at:2380 --initial-advertise-peer-urls http://10.78.0.$at:2380 \\
    --initial-cluster $all < /dev/null &
done
while read name state; do ip link set cable-$name $state; done
`;

export type MemberName = "one" | "two" | "three";

export interface ThreeMembers {
  /** Targets of members by name. */
  endpoint(name: MemberName): string;
  pull(name: MemberName): void;
  plug(name: MemberName): void;
}

/** Returns null where this machine has no etcd, or does not let tests make network namespaces. */
export function startThreeMembers(): ThreeMembers | null {
  if (PROGRAM === "" || spawnSync("unshare", [...ISOLATED, "sh", "-c", TRY]).status !== 0) {
    return null;
  }
  const cwd = testDirectory();
  const env = { ...process.env, ETCD: PROGRAM };
  const scene = spawn("unshare", [...ISOLATED, "bash", "-c", SCENE], {
    cwd,
    env,
    stdio: ["pipe", "ignore", "ignore"],
  });
  closeAfterTest({ close: () => scene.kill("SIGKILL") });
  return {
    endpoint: (name) => `unix:${join(cwd, `${name}:0`)}`,
    pull: (name) => void scene.stdin.write(`${name} down\n`),
    plug: (name) => void scene.stdin.write(`${name} up\n`),
  };
}
