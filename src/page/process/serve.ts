// Owns the page's sources: the sidecar of this process or over its socket, and the gateway over its own.
import { TierkvError } from "../../base/errors.ts";
import { isLocal } from "../../base/hosts.ts";
import { readKeyPair } from "../../base/key-pair.ts";
import type { KeyPair } from "../../base/key-pair.ts";
import type { Running } from "../../base/lifecycle.ts";
import { PAGE_REQUESTS_MAX, PAGE_TOKEN_CHARS_MIN } from "../../base/limits/seen.ts";
import type { Logger } from "../../base/log.ts";
import { readPrivate } from "../../base/private-file.ts";
import type { Address, Config } from "../../config/config.ts";
import { override } from "../../config/override.ts";
import { askSidecar } from "../../control/ask-sidecar.ts";
import { describe } from "../../control/explanation.ts";
import { askFleet, besideFleet } from "../../control/fleet.ts";
import type { AskedFleet } from "../../control/fleet.ts";
import { findings } from "../../diagnosis/findings.ts";
import type { RunningSidecar } from "../../sidecar/sidecar.ts";
import type { SidecarStatus } from "../../sidecar/status.ts";
import type { Account } from "../../sidecar/trace/decisions.ts";
import type { ExplainedRequest, PageSource, View } from "../feed.ts";
import type { PageServer } from "../server.ts";

const HERE: Address = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };

/** Starts the sidecar's own page, if `[sidecar] page_listen` is set. */
export async function startOwnPage(
  config: Config,
  logger: Logger,
  own: () => RunningSidecar | null,
): Promise<Running | undefined> {
  const { pageListen: listen } = config.sidecar;
  if (listen === null) return undefined;
  const sidecar = (): RunningSidecar => {
    const running = own();
    if (running !== null) return running;
    throw new TierkvError("CLOSED", { what: "the sidecar" });
  };
  const { startPage } = await import("../server.ts");
  const page = await startPage({
    listen,
    key: "[sidecar] page_listen",
    ...pageAccess(config),
    source: {
      view: async () => viewOf(config, sidecar().look(), await askFleet(config)),
      requests: () => Promise.resolve(explained(sidecar().explain("", PAGE_REQUESTS_MAX))),
    },
  });
  logger.info({ url: page.url }, "the web page is ready");
  return page;
}

/** Reads the key pair and the token of the sidecar's own page. Throws CREDENTIALS. */
export function pageAccess({ sidecar }: Config): { tls: KeyPair | null; token: string | null } {
  const { pageTlsCert, pageTlsKey, pageToken } = sidecar;
  return {
    tls:
      pageTlsCert === null || pageTlsKey === null
        ? null
        : readKeyPair(pageTlsCert, pageTlsKey, "[sidecar] page_tls"),
    token: pageToken === null ? null : tokenOf(pageToken),
  };
}

/** Serves `tierkv top --web`. Throws USAGE for an address that other machines reach, because it has no TLS and no token. */
export async function servePage(config: Config, listen: string | undefined): Promise<PageServer> {
  const { startPage } = await import("../server.ts");
  return await startPage({
    listen: listen === undefined ? HERE : addressOf(config, listen),
    key: "--listen",
    tls: null,
    token: null,
    source: linked(config),
  });
}

function addressOf(config: Config, text: string): Address {
  const given = { option: "--listen", section: "sidecar", name: "page_listen", text };
  const { pageListen } = override(config, [given]).sidecar;
  if (pageListen !== null && isLocal(pageListen)) return pageListen;
  const reason = `--listen ${text}: other machines reach it; set [sidecar] page_listen with TLS and a token instead`;
  throw new TierkvError("USAGE", { reason });
}

/** Connects anew for each request, because the sidecar may have restarted. */
function linked(config: Config): PageSource {
  const { socket } = config.sidecar;
  return {
    async view() {
      const { fleet, fleetTrouble } = await askFleet(config);
      const asked = askSidecar(socket, (link) => link.status());
      return viewOf(config, await besideFleet(asked, fleet), { fleet, fleetTrouble });
    },
    requests: async () =>
      explained(await askSidecar(socket, (link) => link.explain("", PAGE_REQUESTS_MAX))),
  };
}

function viewOf(config: Config, status: SidecarStatus | null, asked: AskedFleet): View {
  const { fleet } = asked;
  return { status, fleet, findings: findings({ config, targets: [], sidecar: status, ...asked }) };
}

function explained(accounts: readonly Account[]): ExplainedRequest[] {
  return accounts.map((account) => {
    const { req, at, miss } = account;
    return { req, at, miss, lines: describe(account) };
  });
}

function tokenOf(path: string): string {
  const token = readPrivate(path, "[sidecar] page_token").trim();
  if (token.length >= PAGE_TOKEN_CHARS_MIN && !/\s/.test(token)) return token;
  const reason = `it holds no token: ${PAGE_TOKEN_CHARS_MIN} characters or more, without white space`;
  const fix = `run \`openssl rand -hex 32 > ${path}\``;
  throw new TierkvError("CREDENTIALS", { path, reason, fix });
}
