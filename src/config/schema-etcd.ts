// Owns the keys of `[etcd]`.
import { ETCD_ENDPOINTS_MAX } from "../base/limits/pool.ts";
import { addresses } from "./addresses.ts";
import { byDefault, emptyList, file, optional } from "./common-fields.ts";
import type { Schema } from "./field.ts";
import { label } from "./kinds.ts";

export const ETCD: Schema["etcd"] = {
  doc: "A list of vaults and engines in an etcd that you already run.",
  fields: {
    endpoints: {
      kind: addresses("192.168.1.5:2379", ETCD_ENDPOINTS_MAX),
      doc: 'Addresses of etcd. A vault with this key registers itself there with a lease, and leaves the list some seconds after it ends. Machines with `kv_cold = "etcd:vaults"` follow the list; while etcd is gone, they keep the last one.',
      ...emptyList("none", '["192.168.1.5:2379"]'),
    },
    prefix: {
      kind: label(200),
      doc: "Prefix of the keys of vaults.",
      ...byDefault("/tierkv/vaults/"),
    },
    engines_prefix: {
      kind: label(200),
      doc: 'Prefix of the keys of engines. An address `host:port` follows it; the value is empty or `{"events": "host:port", "replays": "host:port"}`.',
      ...byDefault("/tierkv/engines/"),
    },
    engine_host: {
      kind: label(100),
      doc: 'Host by which other machines reach this machine\'s engines. With it the sidecar registers its engines with a lease, for gateways with `discover = "etcd:engines"`. The conditions of `[gateway] engines` apply to them.',
      ...optional("none: engines are not registered", '"192.168.1.20"'),
    },
    user: {
      kind: label(100),
      doc: "Name of this machine's user in etcd, if etcd requires one.",
      ...optional("none", '"tierkv"'),
    },
    password: file(
      "File of mode 0600 with the user's password.",
      "none",
      '"/etc/tierkv/etcd-password"',
    ),
    tls_ca: file(
      "PEM file with the certificate of the CA that signed etcd's certificate. An endpoint on another machine needs it, unless `[cluster] insecure_lan` allows plain connections.",
      "none: plain connections",
      '"/etc/tierkv/etcd-ca.pem"',
    ),
    tls_cert: file(
      "PEM file with this machine's certificate for etcd.",
      "none",
      '"/etc/tierkv/etcd.pem"',
    ),
    tls_key: file(
      "PEM file with the key of `tls_cert`, mode 0600.",
      "none",
      '"/etc/tierkv/etcd-key.pem"',
    ),
  },
};
