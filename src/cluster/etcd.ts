// Owns the options of the etcd client from the configuration: endpoints, login, and trust.
import type { Logger } from "../base/log.ts";
import { readPrivate, readPublic } from "../base/private-file.ts";
import type { Config } from "../config/config.ts";
import type { EtcdOptions } from "../discovery/etcd.ts";

/** Returns the options of the etcd client. Throws CREDENTIALS. */
export function etcdOptions({ etcd }: Config, logger: Logger): EtcdOptions {
  const { endpoints, prefix, user, password, tlsCa, tlsCert, tlsKey } = etcd;
  const pem = (path: string | null, key: string): Buffer | null =>
    path === null ? null : Buffer.from(readPublic(path, key));
  const caPem = pem(tlsCa, "[etcd] tls_ca");
  const keyPem = tlsKey === null ? null : Buffer.from(readPrivate(tlsKey, "[etcd] tls_key"));
  return {
    endpoints: endpoints.map(({ text }) => text),
    prefix,
    tls: caPem && { caPem, certPem: pem(tlsCert, "[etcd] tls_cert"), keyPem },
    login:
      user === null || password === null
        ? null
        : { user, password: readPrivate(password, "[etcd] password").trim() },
    logger,
  };
}
