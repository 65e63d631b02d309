// Owns the rules between keys; each names the key to change and how.
import { isIP } from "node:net";
import { resolve } from "node:path";
import {
  isLocal,
  isNames,
  isSecureStore,
  sharedPath,
  sourceOf,
  splitAddress,
  storeKind,
  unixPath,
  valkeyHosts,
} from "../base/hosts.ts";
import type { Config } from "./config.ts";

export interface Breach {
  path: readonly [section: string, name: string];
  reason: string;
  fix: string;
}

type Rule = (config: Config) => Breach | null;

/** Hosts that stand for every address of a machine, of either family. */
const LISTEN_ONLY = /^(?:0(?:\.0){3}|::)$/;
const FILE_URL = "file://";

/** Whether two folders are one, or one lies in the other. */
function overlap(one: string, other: string): boolean {
  const [a, b] = [`${resolve(one)}/`, `${resolve(other)}/`];
  return a.startsWith(b) || b.startsWith(a);
}

const EXACT_CODECS: ReadonlySet<string> = new Set(["raw", "lossless"]);

const scrapedHere =
  (section: "vault" | "sidecar" | "gateway"): Rule =>
  (config) => {
    const { metricsListen, metricsLan } = config[section];
    if (metricsListen === null || isLocal(metricsListen) || metricsLan) return null;
    return {
      path: [section, "metrics_listen"],
      reason: "other machines can reach it, and metrics are served without TLS and password",
      fix: `write metrics_listen = "127.0.0.1:${metricsListen.port}", or metrics_lan = true on a network you trust`,
    };
  };

const oneForEachEngine =
  (name: "events" | "replays"): Rule =>
  ({ gateway }) => {
    const { engines, events } = gateway;
    const given = gateway[name];
    const wanted = name === "events" ? engines : events;
    if (given.length === 0 || given.length === wanted.length) return null;
    return {
      path: ["gateway", name],
      reason: `${given.length} addresses, and ${wanted.length} ${name === "events" ? "engines" : "events"}`,
      fix: `write one address for each, in the same order, or remove ${name}`,
    };
  };

/** A certificate without its key, or a key without its certificate. */
function half(
  section: string,
  prefix: string,
  certificate: string | null,
  key: string | null,
): Breach | null {
  if ((certificate === null) === (key === null)) return null;
  const [given, missing] = certificate === null ? ["key", "cert"] : ["cert", "key"];
  return {
    path: [section, `${prefix}_${given}`],
    reason: `a certificate and its key go together, and there is no ${prefix}_${missing}`,
    fix: `write ${prefix}_${missing} = "/path/to/it.pem", or remove ${prefix}_${given}`,
  };
}

const certificateHasKey =
  (section: "vault" | "cluster" | "gateway" | "etcd"): Rule =>
  (config) =>
    half(section, "tls", config[section].tlsCert, config[section].tlsKey);

const storeHasItsKey: Rule = ({ cluster: { storeTlsCert, storeTlsKey } }) =>
  half("cluster", "store_tls", storeTlsCert, storeTlsKey);

const storeKnowsWho: Rule = ({ cluster: { storeUser, storePassword } }) =>
  storeUser === null || storePassword !== null
    ? null
    : {
        path: ["cluster", "store_user"],
        reason: "user and password go together, and there is no store_password",
        fix: 'write store_password = "/etc/tierkv/valkey-password", or remove store_user and set VALKEY_USERNAME',
      };

/** Records for Valkey travel in the clear, as `insecure_lan` allows for vaults. */
const storesAreNear: Rule = ({ cluster: { kvCold, ssmCold, insecureLan } }) => {
  const isFar = ({ text }: { text: string }): boolean =>
    storeKind(text) === "valkey" &&
    !isSecureStore(text) &&
    valkeyHosts(text).some((host) => !isLocal({ host: splitAddress(host).host, text: host }));
  const [name, far] = kvCold.some(isFar)
    ? (["kv_cold", kvCold.find(isFar)] as const)
    : (["ssm_cold", ssmCold.find(isFar)] as const);
  if (far === undefined || insecureLan) return null;
  return {
    path: ["cluster", name],
    reason: `${far.text} is on another machine, and valkey:// is not encrypted`,
    fix: "write valkeys:// and store_tls_ca, or insecure_lan = true on a network you trust",
  };
};

const storeIsAlone: Rule = ({ cluster: { kvCold, ssmCold } }) => {
  for (const [name, all] of [
    ["kv_cold", kvCold],
    ["ssm_cold", ssmCold],
  ] as const) {
    const far = all.filter(({ text }) => sharedPath(text) === null);
    const buckets = far.filter(({ text }) => storeKind(text) === "s3");
    const others = far.filter(({ text }) => storeKind(text) !== "s3");
    const store = far.find(({ text }) => storeKind(text) !== null);
    const isPlain = others.every(({ text }) => !isNames(text));
    if (store === undefined || far.length === 1) continue;
    if (buckets.length === 1 && others.length === 1 && isPlain) continue;
    return {
      path: ["cluster", name],
      reason: `${store.text} is no member of a pool, and the list has other addresses`,
      fix: `write ${name} = "${store.text}" alone or behind shm: memory, or one vault or Valkey and one bucket behind it`,
    };
  }
  return null;
};

/** A bucket's objects hold the blocks of a run; a state is found alone. */
const statesNeedNoRuns: Rule = ({ cluster: { ssmCold } }) => {
  const bucket = ssmCold.find(({ text }) => storeKind(text) === "s3");
  if (bucket === undefined) return null;
  return {
    path: ["cluster", "ssm_cold"],
    reason: `${bucket.text} is a bucket, and a bucket has no recurrent states`,
    fix: "write the address of a vault or of Valkey",
  };
};

/** Addresses that a program dials are those of a machine. */
const dialledAreMachines: Rule = ({ cluster: { kvCold, ssmCold } }) => {
  for (const [name, all] of [
    ["kv_cold", kvCold],
    ["ssm_cold", ssmCold],
  ] as const) {
    const any = all.find(({ host }) => LISTEN_ONLY.test(host));
    if (any === undefined) continue;
    return {
      path: ["cluster", name],
      reason: `a vault may listen on ${any.host}, which names no machine to connect to`,
      fix: `write the vault's own address, or 127.0.0.1:${any.port} for this machine`,
    };
  }
  return null;
};

const sharedIsOne =
  (name: "kvCold" | "ssmCold"): Rule =>
  ({ cluster }) => {
    const shared = cluster[name].filter(({ text }) => sharedPath(text) !== null);
    if (shared.length <= 1) return null;
    const key = name === "kvCold" ? "kv_cold" : "ssm_cold";
    return {
      path: ["cluster", key],
      reason: "all sidecars of a machine share one region, and the list has more of them",
      fix: `leave "${shared.at(-1)?.text ?? ""}" out of the list`,
    };
  };

/** Rules by the condition that holds unless they are broken. */
const RULES: Readonly<Record<string, Rule>> = {
  stallIsWithinWait: ({ restore: { waitMs, stallMs } }) =>
    stallMs > waitMs
      ? {
          path: ["restore", "stall_ms"],
          reason: `longer than wait_ms = ${waitMs}, so it could never take effect`,
          fix: `write stall_ms = ${waitMs} or less`,
        }
      : null,
  codecIsOfItsKind: ({ codec: { kv }, turboQuant: { enabled } }) => {
    if (kv === "auto" || enabled === null || EXACT_CODECS.has(kv) !== enabled) return null;
    return {
      path: ["codec", "kv"],
      reason: `[turbo_quant] enabled = ${enabled} asks for ${enabled ? "fewer bytes, nearly the same" : "exact blocks"}, and this codec is ${enabled ? "exact" : "not exact"}`,
      fix: `remove [turbo_quant] enabled, or write kv = ${enabled ? '"int8-mean-had" or "int8"' : '"raw" or "lossless"'}`,
    };
  },
  /** Only explicit keys can conflict; durability has a default. */
  diskHasAPlace: ({ vault: { dataDir, diskBytes, diskTtlS } }) => {
    if (dataDir !== null || (diskBytes === null && diskTtlS === null)) return null;
    const name = diskBytes === null ? "disk_ttl_s" : "disk_bytes";
    return {
      path: ["vault", name],
      reason: "there is no data_dir, so nothing is kept on disk",
      fix: `write data_dir = "/var/lib/tierkv", or remove ${name}`,
    };
  },
  archiveHasADisk: ({ vault: { dataDir, diskBytes, archive, archiveBytes } }) => {
    if (archive === null) {
      if (archiveBytes === null) return null;
      return {
        path: ["vault", "archive_bytes"],
        reason: "there is no archive",
        fix: 'write archive = "s3://bucket/prefix", or remove archive_bytes',
      };
    }
    if (dataDir === null) {
      return {
        path: ["vault", "archive"],
        reason: "there is no data_dir, and what goes to the archive are its files",
        fix: 'write data_dir = "/var/lib/tierkv", or remove archive',
      };
    }
    if (archive.startsWith(FILE_URL) && overlap(archive.slice(FILE_URL.length), dataDir)) {
      return {
        path: ["vault", "archive"],
        reason: `it is the folder of data_dir, or one lies in the other, so both are lost together`,
        fix: "write a folder on another disk",
      };
    }
    if (archiveBytes === null || archiveBytes >= (diskBytes ?? 0)) return null;
    return {
      path: ["vault", "archive_bytes"],
      reason: `less than disk_bytes = ${diskBytes}, and all of the disk goes there`,
      fix: `write archive_bytes = ${diskBytes} or more`,
    };
  },
  vaultIsScrapedHere: scrapedHere("vault"),
  sidecarIsScrapedHere: scrapedHere("sidecar"),
  gatewayIsScrapedHere: scrapedHere("gateway"),
  announcedByAddress: ({ vault: { announce, listen } }) =>
    announce && unixPath(listen.text) !== null
      ? {
          path: ["vault", "announce"],
          reason: "the vault listens on a socket, which no other machine reaches",
          fix: 'write listen = "host:port" with an address of this machine, or remove announce',
        }
      : null,
  toldByNumber: ({ vault: { addresses, listen } }) => {
    const named = addresses.find(({ host }) => isIP(host) === 0);
    const isSocket = addresses.length > 0 && unixPath(listen.text) !== null;
    if (named === undefined && !isSocket) return null;
    return {
      path: ["vault", "addresses"],
      reason: named === undefined ? "the vault listens on a socket" : `${named.text} is a name`,
      fix: 'write IP addresses of this machine, beside listen = "host:port", or remove addresses',
    };
  },
  pooledByAddress: ({ vault: { poolKey, listen, peers }, etcd, cluster: { role } }) => {
    const isRegistered = role !== "inference" && etcd.endpoints.length > 0;
    if (poolKey === null && !isRegistered) {
      if (peers.length === 0) return null;
      const fix = 'write pool_key = "/etc/tierkv/pool-key", or remove peers';
      const reason = "there is no pool_key, so this vault keeps no list with others";
      return { path: ["vault", "peers"], reason, fix };
    }
    const isOne = listen.host !== "" && !/^(?:0\.0\.0\.0|::)$/.test(listen.host);
    if (isOne) return null;
    const reason = `others of the pool find this vault by its address, and ${listen.text} is none`;
    const fix =
      'write listen = "host:port" with an address of this machine, or remove pool_key and [etcd]';
    return { path: ["vault", "listen"], reason, fix };
  },
  etcdIsThere: ({ etcd, cluster: { kvCold, ssmCold }, gateway }) => {
    const { endpoints, engineHost } = etcd;
    const inEtcd = (names: readonly { text: string }[]): string | null =>
      names.find(({ text }) => sourceOf(text) === "etcd")?.text ?? null;
    const { discover } = gateway;
    const all = [
      { path: ["cluster", "kv_cold"] as const, asked: inEtcd(kvCold) },
      { path: ["cluster", "ssm_cold"] as const, asked: inEtcd(ssmCold) },
      {
        path: ["gateway", "discover"] as const,
        asked: inEtcd(discover === null ? [] : [discover]),
      },
      { path: ["etcd", "engine_host"] as const, asked: engineHost },
    ];
    const missing = all.find(({ asked }) => asked !== null);
    if (missing === undefined || endpoints.length > 0) return null;
    const { path, asked } = missing;
    const fix = 'write endpoints = ["host:2379"] under [etcd]';
    const reason = `${asked} stands there, and it is not said where etcd is`;
    return { path, reason, fix };
  },
  etcdIsHidden: ({ etcd: { endpoints, tlsCa }, cluster: { insecureLan } }) => {
    const far = endpoints.find((endpoint) => !isLocal(endpoint));
    if (far === undefined || tlsCa !== null || insecureLan) return null;
    const reason = `${far.text} is on another machine, and whoever is on the way could add a vault or an engine`;
    const fix =
      'write tls_ca = "/etc/tierkv/etcd-ca.pem", or [cluster] insecure_lan = true on a network you trust';
    return { path: ["etcd", "endpoints"], reason, fix };
  },
  etcdKnowsWho: ({ etcd: { user, password } }) => {
    if ((user === null) === (password === null)) return null;
    const [given, missing] = user === null ? ["password", "user"] : ["user", "password"];
    const reason = `user and password go together, and there is no ${missing}`;
    return {
      path: ["etcd", given],
      reason,
      fix: `write ${missing}, or remove ${given}`,
    };
  },
  servedHere: ({ gateway: { listen, lan, keys, tlsCert } }) =>
    isLocal(listen) || lan || (keys !== null && tlsCert !== null)
      ? null
      : {
          path: ["gateway", "listen"],
          reason: "other machines can reach it without a key, or in the clear",
          fix: `write listen = "127.0.0.1:${listen.port}", set keys and tls_cert, or lan = true where only trusted machines reach it`,
        },
  pickedHere: ({ gateway: { extProc, lan } }) =>
    extProc === null || isLocal(extProc) || lan
      ? null
      : {
          path: ["gateway", "ext_proc"],
          reason: "other machines can reach it, and prompts pass in the clear",
          fix: `write ext_proc = "127.0.0.1:${extProc.port}", or lan = true where only trusted machines reach it`,
        },
  /** Envoy resolves no names in the header with a request's destination. */
  pickedByNumber: ({ gateway: { extProc, engines } }) => {
    const named = engines.find(({ host }) => isIP(host) === 0);
    if (extProc === null || named === undefined) return null;
    return {
      path: ["gateway", "engines"],
      reason: `with ext_proc Envoy is told addresses, and ${named.text} is a name or a socket`,
      fix: "write the IP addresses of engines",
    };
  },
  registeredByNumber: ({ gateway: { extProc }, etcd: { engineHost } }) => {
    if (extProc === null || engineHost === null || isIP(engineHost) !== 0) return null;
    return {
      path: ["etcd", "engine_host"],
      reason: `with [gateway] ext_proc Envoy is told addresses, and ${engineHost} is a name`,
      fix: "write the IP address of this machine",
    };
  },
  helpersAreEngines: ({ gateway: { prefill, engines } }) => {
    const known = new Set(engines.map(({ text }) => text));
    const other = prefill.find(({ text }) => !known.has(text));
    if (other === undefined) return null;
    return {
      path: ["gateway", "prefill"],
      reason: `${other.text} is none of engines`,
      fix: "add it to engines, or remove it from prefill",
    };
  },
  shownHere: ({ sidecar }) => {
    const { pageListen, pageTlsCert, pageToken } = sidecar;
    if (pageListen === null || isLocal(pageListen)) return null;
    if (pageTlsCert !== null && pageToken !== null) return null;
    return {
      path: ["sidecar", "page_listen"],
      reason: "other machines can reach it without a token, or in the clear",
      fix: `write page_listen = "127.0.0.1:${pageListen.port}", or set page_tls_cert, page_tls_key and page_token`,
    };
  },
  pageApartFromMetrics: ({ sidecar: { pageListen, metricsListen } }) => {
    if (pageListen === null || pageListen.port === 0) return null;
    if (pageListen.text !== metricsListen?.text) return null;
    return {
      path: ["sidecar", "page_listen"],
      reason: "metrics_listen has that port already",
      fix: `write page_listen = "${pageListen.host}:${pageListen.port + 1}", or another free port`,
    };
  },
  pageHasItsKey: ({ sidecar: { pageTlsCert, pageTlsKey } }) =>
    half("sidecar", "page_tls", pageTlsCert, pageTlsKey),
  eventsOfEachEngine: oneForEachEngine("events"),
  replaysOfEachEngine: oneForEachEngine("replays"),
  vaultHasItsKey: certificateHasKey("vault"),
  clusterHasItsKey: certificateHasKey("cluster"),
  gatewayHasItsKey: certificateHasKey("gateway"),
  etcdHasItsKey: certificateHasKey("etcd"),
  openOrClosed: ({ vault }) => {
    const { insecureLan, tlsCert, tlsClientCa, tokens } = vault;
    if (!insecureLan || (tlsCert ?? tlsClientCa ?? tokens) === null) return null;
    const name = tlsCert !== null ? "tls_cert" : tlsClientCa !== null ? "tls_client_ca" : "tokens";
    return {
      path: ["vault", "insecure_lan"],
      reason: `it lets everybody in, and ${name} says who may come`,
      fix: `remove insecure_lan, or remove ${name}`,
    };
  },
  dialledAreMachines,
  storesAreNear,
  storeHasItsKey,
  storeKnowsWho,
  storeIsAlone,
  statesNeedNoRuns,
  sharedKvIsOne: sharedIsOne("kvCold"),
  sharedStatesAreOne: sharedIsOne("ssmCold"),
  trustHasAnAnchor: ({ cluster }) => {
    const { tlsCa, tlsCert, token } = cluster;
    if (tlsCa !== null || (tlsCert ?? token) === null) return null;
    const name = token === null ? "tls_cert" : "token";
    return {
      path: ["cluster", name],
      reason: "there is no tls_ca, so it is not known which vault may be given it",
      fix: `write tls_ca = "/path/to/ca.pem", or remove ${name} and run \`tierkv join\``,
    };
  },
};

/** Every rule that a well-typed configuration breaks. */
export function breaches(config: Config): Breach[] {
  return Object.values(RULES)
    .map((rule) => rule(config))
    .filter((breach) => breach !== null);
}
