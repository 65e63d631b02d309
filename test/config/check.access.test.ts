// Owns the table of what is refused about who gets in: certificates without keys, secrets without a vault, doors both open and closed.
import { expect, test } from "vitest";
import { checkConfig } from "../../src/config/check.ts";
import { bad, testRefusals } from "../support/bad-config.ts";

testRefusals({
  "metrics of a vault that other machines reach": bad(
    '[vault]\nmetrics_listen = "192.168.1.10:50250"',
    2,
    "CONFIG_CONFLICT",
    '[vault] metrics_listen = "192.168.1.10:50250"',
    'write metrics_listen = "127.0.0.1:50250", or metrics_lan = true',
  ),
  "metrics of a sidecar on every address": bad(
    '[sidecar]\nmetrics_listen = "0.0.0.0:50251"',
    2,
    "CONFIG_CONFLICT",
    "[sidecar] metrics_listen",
    "metrics_lan = true on a network you trust",
  ),
  "a vault on a socket that is announced to other machines": bad(
    '[vault]\nlisten = "unix:/run/vault.sock"\nannounce = true',
    3,
    "CONFIG_CONFLICT",
    "[vault] announce = true",
    'write listen = "host:port"',
  ),
  "a gateway that other machines reach": bad(
    '[gateway]\nlisten = "0.0.0.0:8100"',
    2,
    "CONFIG_CONFLICT",
    '[gateway] listen = "0.0.0.0:8100"',
    "or lan = true where only trusted machines reach it",
  ),
  "a gateway that other machines reach with keys in the clear": bad(
    '[gateway]\nlisten = "0.0.0.0:8100"\nkeys = "/k"',
    2,
    "CONFIG_CONFLICT",
    "[gateway] listen",
    "set keys and tls_cert",
  ),
  "Envoy's questions from other machines": bad(
    '[gateway]\next_proc = "0.0.0.0:9002"',
    2,
    "CONFIG_CONFLICT",
    "[gateway] ext_proc",
    'write ext_proc = "127.0.0.1:9002", or lan = true',
  ),
  "names of engines, where Envoy wants addresses": bad(
    '[gateway]\next_proc = "127.0.0.1:9002"\nengines = ["127.0.0.1:8000", "vllm:8000"]',
    3,
    "CONFIG_CONFLICT",
    "vllm:8000 is a name",
    "write the IP addresses of engines",
  ),
  "a name under which engines are registered, where Envoy wants addresses": bad(
    '[gateway]\next_proc = "127.0.0.1:9002"\ndiscover = "etcd:engines"\n[etcd]\nendpoints = ["127.0.0.1:2379"]\nengine_host = "node-1"',
    6,
    "CONFIG_CONFLICT",
    "node-1 is a name",
    "write the IP address of this machine",
  ),
  "metrics of a gateway for other machines": bad(
    '[gateway]\nmetrics_listen = "0.0.0.0:9464"',
    2,
    "CONFIG_CONFLICT",
    "[gateway] metrics_listen",
    "metrics_lan = true",
  ),
  "an engine for prompts that is none of engines": bad(
    '[gateway]\nengines = ["127.0.0.1:8000"]\nprefill = ["127.0.0.1:8001"]',
    3,
    "CONFIG_CONFLICT",
    "127.0.0.1:8001 is none of engines",
    "add it to engines",
  ),
  "more events than engines": bad(
    '[gateway]\nengines = ["10.0.0.1:8000"]\nevents = ["10.0.0.1:1", "10.0.0.1:2"]',
    3,
    "CONFIG_CONFLICT",
    "[gateway] events",
    "write one address for each",
  ),
  "engines that are no list": bad(
    '[gateway]\nengines = "127.0.0.1:8000"',
    2,
    "CONFIG_WRONG_TYPE",
    "[gateway] engines",
    'write engines = ["127.0.0.1:8000"]',
  ),
  "an engine without a port": bad(
    '[gateway]\nengines = ["10.0.0.1:8000", "10.0.0.2"]',
    2,
    "CONFIG_BAD_VALUE",
    "the port is missing",
    'write engines = ["10.0.0.1:8000", "10.0.0.2:8000"]',
  ),
  "an engine with a scheme and a port of its own": bad(
    '[gateway]\nengines = ["http://10.0.0.1:8001/v1"]',
    2,
    "CONFIG_BAD_VALUE",
    "no scheme",
    'write engines = ["10.0.0.1:8001"]',
  ),
  "one engine without brackets": bad(
    '[gateway]\nengines = "10.0.0.1:8001"',
    2,
    "CONFIG_WRONG_TYPE",
    "a list of addresses",
    'write engines = ["10.0.0.1:8001"]',
  ),
  "an engine twice": bad(
    '[gateway]\nengines = ["10.0.0.1:8000", "10.0.0.1:8000"]',
    2,
    "CONFIG_BAD_VALUE",
    "10.0.0.1:8000 stands there twice",
    'write engines = ["10.0.0.1:8000"]',
  ),
  "a vault twice in a long list": bad(
    '[cluster]\nkv_cold = ["a:1", "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1", "i:1", "a:1"]',
    2,
    "CONFIG_BAD_VALUE",
    "a:1 stands there twice",
    'leave one "a:1" out',
  ),
  "shared memory without a path": bad(
    '[cluster]\nkv_cold = "shm:tierkv"',
    2,
    "CONFIG_BAD_VALUE",
    "not an absolute path of at most 4096 bytes behind shm:",
    'write kv_cold = "shm:/dev/shm/tierkv"',
  ),
  "two regions": bad(
    '[cluster]\nssm_cold = ["a:1", "shm:/dev/shm/x", "shm:/dev/shm/y"]',
    2,
    "CONFIG_CONFLICT",
    "share one region",
    'leave "shm:/dev/shm/y" out',
  ),
  "Valkey with a password in its address": bad(
    '[cluster]\nkv_cold = "valkey://user:word@127.0.0.1:6379"',
    2,
    "CONFIG_BAD_VALUE",
    "VALKEY_USERNAME and VALKEY_PASSWORD",
    'write kv_cold = "valkey://host:6379"',
  ),
  "Valkey without a port": bad(
    '[cluster]\nkv_cold = "valkey://127.0.0.1"',
    2,
    "CONFIG_BAD_VALUE",
    "the port is missing",
    'write kv_cold = "valkey://host:6379"',
  ),
  "Valkey with a database that is no number": bad(
    '[cluster]\nkv_cold = "valkey://127.0.0.1:6379/x"',
    2,
    "CONFIG_BAD_VALUE",
    "no number of a database",
    'write kv_cold = "valkey://host:6379"',
  ),
  "a bucket without a name": bad(
    '[cluster]\nkv_cold = "s3:///x"',
    2,
    "CONFIG_BAD_VALUE",
    "no bucket and prefix",
    '"s3://bucket/prefix"',
  ),
  "Valkey in the clear on another machine": bad(
    '[cluster]\nkv_cold = "valkey://127.0.0.1:6379,10.0.0.1:6379"',
    2,
    "CONFIG_CONFLICT",
    "valkey:// is not encrypted",
    "insecure_lan = true",
  ),
  "a store among vaults": bad(
    '[cluster]\nkv_cold = ["127.0.0.1:50051", "valkey://127.0.0.1:6379"]',
    2,
    "CONFIG_CONFLICT",
    "no member of a pool",
    'write kv_cold = "valkey://127.0.0.1:6379" alone',
  ),
  "states in a bucket": bad(
    '[cluster]\nssm_cold = "s3://bucket/x"',
    2,
    "CONFIG_CONFLICT",
    "a bucket has no recurrent states",
    "a vault or of Valkey",
  ),
  "a vault's certificate without its key": bad(
    '[vault]\ntls_cert = "/c.pem"',
    2,
    "CONFIG_CONFLICT",
    '[vault] tls_cert = "/c.pem"',
    "write tls_key",
  ),
  "a client's key without its certificate": bad(
    '[cluster]\ntls_ca = "/ca.pem"\ntls_key = "/k.pem"',
    3,
    "CONFIG_CONFLICT",
    '[cluster] tls_key = "/k.pem"',
    "write tls_cert",
  ),
  "a token without a CA": bad(
    '[cluster]\ntoken = "/t"',
    2,
    "CONFIG_CONFLICT",
    '[cluster] token = "/t"',
    "run `tierkv join`",
  ),
  "a client's certificate without a CA": bad(
    '[cluster]\ntls_cert = "/c.pem"\ntls_key = "/k.pem"',
    2,
    "CONFIG_CONFLICT",
    "[cluster] tls_cert",
    "write tls_ca",
  ),
  "a door that is open and closed": bad(
    '[vault]\ninsecure_lan = true\ntokens = "/t"',
    2,
    "CONFIG_CONFLICT",
    "[vault] insecure_lan = true",
    "remove insecure_lan, or remove tokens",
  ),
  "a door that is open, with a certificate": bad(
    '[vault]\ninsecure_lan = true\ntls_cert = "/c"\ntls_key = "/k"',
    2,
    "CONFIG_CONFLICT",
    "remove tls_cert",
  ),
  "a door that is open, with a CA": bad(
    '[vault]\ninsecure_lan = true\ntls_client_ca = "/c"',
    2,
    "CONFIG_CONFLICT",
    "remove tls_client_ca",
  ),
  "a path that is none": bad(
    '[vault]\ntokens = "tokens"',
    2,
    "CONFIG_BAD_VALUE",
    '[vault] tokens = "tokens"',
    'write tokens = "/absolute/path"',
  ),
  "a door in quotes": bad(
    '[vault]\ninsecure_lan = "yes"',
    2,
    "CONFIG_WRONG_TYPE",
    "[vault] insecure_lan",
    "write insecure_lan = true",
  ),
  "the usual name of another program": bad(
    '[vault]\ntls_ca = "/ca.pem"',
    2,
    "CONFIG_UNKNOWN_KEY",
    "[vault] tls_ca",
  ),
});

test.each(["127.0.0.1:1", "127.9.8.7:1", "localhost:1", "[::1]:1"])(
  "metrics on %s are nobody else's business",
  (address) => {
    const { problems } = checkConfig(`[vault]\nmetrics_listen = "${address}"`, null, {});
    expect(problems).toEqual([]);
  },
);

test("where secrets lie follows the environment", () => {
  const stateDir = (env: Record<string, string>): string | undefined =>
    checkConfig("", null, env).config?.vault.stateDir;
  expect(stateDir({ HOME: "/home/a" })).toBe("/home/a/.local/state/tierkv");
  expect(stateDir({ HOME: "/home/a", XDG_STATE_HOME: "/s" })).toBe("/s/tierkv");
  expect(stateDir({ HOME: "/a", STATE_DIRECTORY: "/var/lib/x:/var/lib/y" })).toBe("/var/lib/x");
  const { config } = checkConfig("", null, { HOME: "/home/a" });
  expect(config?.cluster.credentials).toBe("/home/a/.config/tierkv/vaults");
});
