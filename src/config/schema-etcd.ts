// Owns the keys of `[etcd]`.
import { ETCD_ENDPOINTS_MAX } from "../limits/pool.ts";
import { addresses } from "./addresses.ts";
import { byDefault, emptyList, file, optional } from "./common-fields.ts";
import type { Schema } from "./field.ts";
import { label } from "./kinds.ts";

export const ETCD: Schema["etcd"] = {
  doc: "etcd, for those who run it anyway: which vaults and engines there are.",
  fields: {
    endpoints: {
      kind: addresses("192.168.1.5:2379", ETCD_ENDPOINTS_MAX),
      doc: 'Where etcd answers. A vault with this key registers itself there, with a lease: it is out of the list some seconds after it ended. Machines with `kv_cold = "etcd:vaults"` follow the list; while etcd is gone they keep the last one.',
      ...emptyList("none", '["192.168.1.5:2379"]'),
    },
    prefix: {
      kind: label(200),
      doc: "What the keys of vaults begin with.",
      ...byDefault("/tierkv/vaults/"),
    },
    engines_prefix: {
      kind: label(200),
      doc: 'What the keys of engines begin with: an address `host:port` stands behind it, and the value is empty or `{"events": "host:port", "replays": "host:port"}`.',
      ...byDefault("/tierkv/engines/"),
    },
    engine_host: {
      kind: label(100),
      doc: 'Where other machines reach the engines of this one. With it the sidecar registers those that it knows, with a lease, for gateways with `discover = "etcd:engines"`; they serve as `[gateway] engines` says.',
      ...optional("none: engines are not registered", '"192.168.1.20"'),
    },
    user: {
      kind: label(100),
      doc: "Who this machine is to etcd, where that asks.",
      ...optional("none", '"tierkv"'),
    },
    password: file(
      "File of mode 0600 with the user's password.",
      "none",
      '"/etc/tierkv/etcd-password"',
    ),
    tls_ca: file(
      "PEM file with the certificate of who signed etcd's. Needed where an endpoint is on another machine, unless `[cluster] insecure_lan` allows the clear.",
      "none: in the clear",
      '"/etc/tierkv/etcd-ca.pem"',
    ),
    tls_cert: file(
      "PEM file with this machine's certificate for etcd.",
      "none",
      '"/etc/tierkv/etcd.pem"',
    ),
    tls_key: file("PEM file with its key, mode 0600.", "none", '"/etc/tierkv/etcd-key.pem"'),
  },
};
