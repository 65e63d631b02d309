// Owns the table of files that are no TOML, of unknown keys and of wrong types.
import { expect, test } from "vitest";
import { checkConfig } from "../../src/config/check.ts";
import { bad, testRefusals } from "../support/bad-config.ts";

testRefusals({
  // Not TOML.
  "an open table header": bad("[cluster\nrole = 1", 1, "CONFIG_SYNTAX", "[cluster"),
  "a key without a value": bad("[cluster]\nrole =\n", 2, "CONFIG_SYNTAX", "role ="),
  "text without quotes": bad("[cluster]\nrole = inference", 2, "CONFIG_SYNTAX", "role = inference"),
  "an address without quotes": bad(
    "[cluster]\nkv_cold = 10.0.0.1:50051",
    2,
    "CONFIG_SYNTAX",
    "10.0.0.1:50051",
  ),
  "a key given twice": bad(
    "[vault]\nmax_bytes = 1\nmax_bytes = 2",
    3,
    "CONFIG_SYNTAX",
    "max_bytes = 2",
  ),
  "a table given twice": bad("[vault]\n[vault]", 2, "CONFIG_SYNTAX", "[vault]"),
  "both forms of turbo_quant": bad(
    "turbo_quant = false\n[turbo_quant]\nkv_dim = 256",
    2,
    "CONFIG_SYNTAX",
    "[turbo_quant]",
  ),

  // Unknown keys and tables.
  "a key with a slip": bad(
    "[vault]\nmax_byte = 24",
    2,
    "CONFIG_UNKNOWN_KEY",
    "[vault] max_byte = 24",
    "did you mean max_bytes?",
  ),
  "a key in camel case": bad(
    "[vault]\nmaxBytes = 24",
    2,
    "CONFIG_UNKNOWN_KEY",
    "[vault] maxBytes = 24",
    "did you mean max_bytes?",
  ),
  "a key with dashes": bad(
    '[cluster]\nkv-cold = "a:1"',
    2,
    "CONFIG_UNKNOWN_KEY",
    '[cluster] kv-cold = "a:1"',
    "did you mean kv_cold?",
  ),
  "a key in another table": bad(
    '[cluster]\nlisten = "a:1"',
    2,
    "CONFIG_UNKNOWN_KEY",
    "[cluster] listen",
    "move it below [vault] as listen",
  ),
  "a key far from any": bad(
    "[log]\npersist_path = 1",
    2,
    "CONFIG_UNKNOWN_KEY",
    "[log] persist_path = 1",
    "known keys of [log]: level",
  ),
  "a key like one of another table": bad(
    "[vault]\nport = 3",
    2,
    "CONFIG_UNKNOWN_KEY",
    "[vault] port = 3",
    "known keys of [vault]: listen",
  ),
  "a table with a slip": bad(
    '[clutser]\nrole = "inference"',
    1,
    "CONFIG_UNKNOWN_KEY",
    "clutser",
    "did you mean [cluster]?",
  ),
  "a table far from any": bad(
    "\n\n[prometheus]\nport = 1",
    3,
    "CONFIG_UNKNOWN_KEY",
    "prometheus = { port = 1 }",
    "known tables: cluster, turbo_quant",
  ),
  "a key above all tables": bad(
    "max_bytes = 24",
    1,
    "CONFIG_UNKNOWN_KEY",
    "max_bytes = 24",
    "move it below [vault] as max_bytes",
  ),
  "a key that harms objects": bad(
    "__proto__ = 1",
    1,
    "CONFIG_UNKNOWN_KEY",
    "__proto__ = 1",
    "known tables",
  ),
  "a key that objects have": bad(
    "[vault]\nconstructor = 1",
    2,
    "CONFIG_UNKNOWN_KEY",
    "constructor = 1",
    "known keys of [vault]",
  ),
  "an array of tables": bad(
    "[[vault]]\nmax_bytes = 1",
    1,
    "CONFIG_WRONG_TYPE",
    "vault = [{ max_bytes = 1 }]",
    "expected a table",
    "write [vault]",
  ),
  "a value for a table": bad(
    "vault = 3",
    1,
    "CONFIG_WRONG_TYPE",
    "vault = 3",
    "expected a table",
    "write [vault]",
  ),

  // Wrong types.
  "a role that is a number": bad(
    "[cluster]\nrole = 1",
    2,
    "CONFIG_WRONG_TYPE",
    "[cluster] role = 1",
    'write role = "inference"',
  ),
  "a boolean in quotes": bad(
    '[turbo_quant]\nenabled = "false"',
    2,
    "CONFIG_WRONG_TYPE",
    '[turbo_quant] enabled = "false"',
    "write enabled = true or",
  ),
  "turbo_quant as text": bad(
    'turbo_quant = "off"',
    1,
    "CONFIG_WRONG_TYPE",
    'turbo_quant = "off"',
    "expected a table",
  ),
  "autostart in quotes": bad(
    '[sidecar]\nautostart = "off"',
    2,
    "CONFIG_WRONG_TYPE",
    '[sidecar] autostart = "off"',
    "write autostart = true or autostart = false",
  ),
  "an idle time with a unit": bad(
    '[sidecar]\nidle_exit_s = "10min"',
    2,
    "CONFIG_WRONG_TYPE",
    '[sidecar] idle_exit_s = "10min"',
    "whole number without quotes",
  ),
  "a whole number in quotes": bad(
    '[restore]\nwait_ms = "5000"',
    2,
    "CONFIG_WRONG_TYPE",
    '[restore] wait_ms = "5000"',
    "without quotes",
  ),
  "a whole number with a point": bad(
    "[turbo_quant]\nkv_dim = 256.0",
    2,
    "CONFIG_WRONG_TYPE",
    "[turbo_quant] kv_dim = 256",
    "whole number",
  ),
  "bytes with a point": bad(
    "[vault]\nmax_bytes = 2.4e10",
    2,
    "CONFIG_WRONG_TYPE",
    "[vault] max_bytes = 24000000000",
    '"24GB"',
  ),
  "bytes that are a date": bad(
    "[vault]\nmax_bytes = 2026-01-01",
    2,
    "CONFIG_WRONG_TYPE",
    "[vault] max_bytes = 2026-01-01",
    "expected bytes",
  ),
  "an address that is a port": bad(
    "[cluster]\nkv_cold = 50051",
    2,
    "CONFIG_WRONG_TYPE",
    "[cluster] kv_cold = 50051",
    'write kv_cold = "192.168.1.10:50051"',
  ),
  "an address as a table": bad(
    '[cluster.kv_cold]\nhost = "10.0.0.9"\nport = 7000',
    1,
    "CONFIG_WRONG_TYPE",
    "[cluster] kv_cold =",
    'write kv_cold = "10.0.0.9:7000"',
  ),
  "a path that is a list": bad(
    '[sidecar]\nsocket = ["/a"]',
    2,
    "CONFIG_WRONG_TYPE",
    '[sidecar] socket = ["/a"]',
    'write socket = "/absolute/path"',
  ),
});

test("F43 reports every mistake, in the order of the file", () => {
  const toml = '[log]\nlevel = "loud"\n[vault]\nmax_byte = 1\nlisten = "x"\n[cluster]\nrole = 7\n';
  const { problems } = checkConfig(toml, "t.toml", {});
  expect(problems.map(({ code, details }) => [details["line"], code])).toEqual([
    [2, "CONFIG_BAD_VALUE"],
    [4, "CONFIG_UNKNOWN_KEY"],
    [5, "CONFIG_BAD_VALUE"],
    [7, "CONFIG_WRONG_TYPE"],
  ]);
});
