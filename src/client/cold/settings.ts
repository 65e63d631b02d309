// Owns the settings of a store from the configuration: time to live, prefix, login and trust.
import { classNumber } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { readKeyPair } from "../../base/key-pair.ts";
import type { ColdSettings } from "../../base/native.ts";
import { readPrivate, readPublic } from "../../base/private-file.ts";
import type { Config } from "../../config/config.ts";

/** Returns the settings for records of a class. Throws CREDENTIALS for a file that cannot be used. */
export function storeSettings({ cluster }: Config, name: RecordClass): ColdSettings {
  const { storeTtlS, storePrefix, storeReplicas, storeUser, storePassword } = cluster;
  const { storeTlsCa, storeTlsCert, storeTlsKey } = cluster;
  const settings: ColdSettings = {
    class: classNumber(name),
    prefix: storePrefix,
    readsReplicas: storeReplicas,
  };
  if (storeTtlS !== null) settings.ttlS = storeTtlS;
  if (storeUser !== null) settings.user = storeUser;
  if (storePassword !== null)
    settings.password = readPrivate(storePassword, "[cluster] store_password").trim();
  if (storeTlsCa !== null)
    settings.caPem = Buffer.from(readPublic(storeTlsCa, "[cluster] store_tls_ca"));
  if (storeTlsCert !== null && storeTlsKey !== null) {
    const { cert, key } = readKeyPair(storeTlsCert, storeTlsKey, "[cluster] store_tls");
    settings.certPem = Buffer.from(cert);
    settings.keyPem = Buffer.from(key);
  }
  return settings;
}
