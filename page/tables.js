// Owns the page's texts and tables: values become cells by textContent, never markup.
const NONE = "-";

export function showBytes(bytes) {
  const names = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(names.length - 1, bytes < 1 ? 0 : Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** step;
  return `${value.toFixed(step === 0 || value >= 100 ? 0 : 1)} ${names[step]}`;
}

export function showMs(ms) {
  if (ms === null || ms === undefined) return NONE;
  const size = Math.abs(ms);
  if (size < 1000) return `${ms.toFixed(size < 10 ? 2 : 0)} ms`;
  if (size < 100_000) return `${(ms / 1000).toFixed(1)} s`;
  if (size < 6_000_000) return `${(ms / 60_000).toFixed(0)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
}

const share = (part, whole) => (whole > 0 ? `${((part / whole) * 100).toFixed(1)} %` : NONE);
const time = (at) => new Date(at).toTimeString().slice(0, 8);

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function meter(value, most, label) {
  const made = document.createElement("meter");
  made.max = Math.max(1, most);
  made.value = value;
  made.setAttribute("aria-label", label);
  return made;
}

function table(at, head, rows, none) {
  const cells = (name, row) =>
    row.map((cell) => {
      const made = element(name, cell);
      if (name === "th") made.scope = "col";
      return made;
    });
  const empty = element("td", none);
  empty.colSpan = head.length;
  const body =
    rows.length === 0
      ? [element("tr", empty)]
      : rows.map((row) => element("tr", ...cells("td", row)));
  at.replaceChildren(
    element("thead", element("tr", ...cells("th", head))),
    element("tbody", ...body),
  );
}

export function showFindings(at, findings) {
  const texts = findings.map(({ severity, text }) => `${severity.toUpperCase()}: ${text}`);
  // Only when it changed: it is read aloud.
  if (at.dataset.shown === texts.join("\n")) return;
  at.dataset.shown = texts.join("\n");
  at.replaceChildren(...texts.map((text) => element("p", text)));
}

export function showTiles(at, { ledger, counters }, rate) {
  const { tokens, restores, savedS, prefillS, joules } = ledger;
  const tiles = [
    ["Tokens not computed", tokens.toLocaleString("en")],
    ["Restores", restores.toLocaleString("en")],
    ["Waiting saved", showMs(savedS * 1000)],
    ["Prefill saved", showMs(prefillS * 1000)],
    ...(joules === null ? [] : [["Energy saved", `${(joules / 3600).toFixed(1)} Wh`]]),
    ["Hit rate", share(counters.lookup_hits ?? 0, counters.lookup_keys ?? 0)],
    ["From vaults now", rate === "" ? NONE : rate],
  ];
  at.replaceChildren(
    ...tiles.map(([name, value]) => element("div", element("dt", name), element("dd", value))),
  );
}

export function showEngines(at, engines) {
  const rows = engines.map(({ id, model, naming, isRestoring, arena, plans, workers, world }) => {
    const used = arena === null ? 0 : arena.touchedSlots - arena.freeSlots;
    return [
      id,
      model,
      isRestoring
        ? "restores"
        : naming.percent < 100
          ? `hashing weights: ${naming.percent} %`
          : "starting",
      `${workers}/${world}`,
      arena === null ? NONE : meter(used, arena.slotCount, `shared memory of ${id} in use`),
      arena === null ? NONE : `${showBytes(used * arena.slotBytes)} of ${showBytes(arena.bytes)}`,
      String(plans),
    ];
  });
  table(
    at,
    ["engine", "model", "state", "ranks", "shared memory", "in use", "restores now"],
    rows,
    "no engine is connected",
  );
}

/** Shares are of the prompts that were sent there lately. */
export function showFleet(at, waits, { engines, waiting }) {
  const rows = engines.map((one) => {
    const { tokens, held, pulled, predictedMs, measuredMs } = one.recent;
    return [
      one.engine,
      one.state === "down" ? `DOWN: ${one.reason}` : one.state,
      one.events ?? NONE,
      String(one.inFlight),
      `${one.prompts} (${showMs(one.queueMs)})`,
      share(held, tokens),
      share(pulled, tokens),
      `${showMs(measuredMs)} (${showMs(predictedMs)})`,
      one.models.join(", "),
    ];
  });
  const head = [
    "engine",
    "state",
    "events",
    "in flight",
    "prompts (queue)",
    "held there",
    "from vaults",
    "first token (predicted)",
    "models",
  ];
  table(at, head, rows, "the gateway knows no engine");
  const text = `${waiting} requests wait for an engine with room`;
  if (waits.textContent !== text) waits.textContent = text;
}

/** Each vault once: one that keeps both classes has the same contents in both lists. */
function byVault({ kv, ssm }) {
  const isOne = (one) => (other) =>
    one.address === other.address && one.share === other.share && one.state === other.state;
  const both = kv.filter((one) => ssm.some(isOne(one)));
  return [
    ...kv.map((one) => [both.includes(one) ? "kv, ssm" : "kv", one]),
    ...ssm.filter((one) => !both.some(isOne(one))).map((one) => ["ssm", one]),
  ];
}

export function showVaults(at, vaults) {
  const rows = byVault(vaults).map(
    ([name, { address, state, hasLeft, lanes, share: owned, holes, moved, tier, seen }]) => [
      name,
      hasLeft === true
        ? "left"
        : state === "up" || state === "unknown"
          ? state
          : state.toUpperCase(),
      tier === "shared" ? NONE : share(owned, 1),
      `${holes}, ${moved}`,
      ...(seen === null ? Array(7).fill(NONE) : seenCells(name, lanes, seen)),
      address,
    ],
  );
  const head = [
    "vault",
    "state",
    "owns",
    "gaps, misplaced",
    "round trip",
    "memory",
    "in use",
    "records",
    "hit rate",
    "lanes",
    "out, in",
    "address",
  ];
  table(at, head, rows, "no vault is configured");
}

function seenCells(name, lanes, seen) {
  const { rttMs, usedBytes, maxBytes, records, lookupHits, lookupKeys, outBytesPerS, inBytesPerS } =
    seen;
  return [
    showMs(rttMs),
    meter(usedBytes, maxBytes, `memory of the ${name} vault in use`),
    `${showBytes(usedBytes)} of ${showBytes(maxBytes)}`,
    records.toLocaleString("en"),
    share(lookupHits, lookupKeys),
    lanes === "up" ? String(seen.lanes) : lanes,
    `${showBytes(outBytesPerS)}/s, ${showBytes(inBytesPerS)}/s`,
  ];
}

/** 0 predicts nothing: nothing was measured yet, or what lies here needs no fetch. */
const showPredicted = (ms) => showMs(ms || null);

/** Where restored blocks came from, by the words of a request's report. */
const SOURCES = { loaded: "vault", local: "host" };

export function showRestores(at, restores) {
  const rows = restores
    .slice(-20)
    .reverse()
    .map(({ at: when, req, loadedTokens, choice, actual, predicted, saved }) => [
      time(when),
      req,
      String(loadedTokens ?? 0),
      SOURCES[choice] ?? choice,
      `${showMs(actual.fetch)} (${showPredicted(predicted.fetch)})`,
      `${showMs(actual.load)} (${showPredicted(predicted.load)})`,
      showMs(saved),
    ]);
  table(
    at,
    ["time", "request", "tokens", "from", "fetch (predicted)", "load (predicted)", "saved"],
    rows,
    "nothing has been restored yet",
  );
}

/** One button a cause; they stay where they are, so that the keyboard does not lose its place. */
export function showMisses(at, misses, explain) {
  const causes = Object.entries(misses).sort(([, a], [, b]) => b - a);
  const names = causes.map(([cause]) => cause).join();
  if (at.dataset.shown !== names) {
    at.dataset.shown = names;
    at.replaceChildren(
      ...causes.map(([cause]) => {
        const button = element("button");
        button.type = "button";
        button.addEventListener("click", () => void explain(cause));
        return element("li", button);
      }),
    );
  }
  for (const [index, [cause, count]] of causes.entries()) {
    const text = `${count.toLocaleString("en")} × ${cause} (explain)`;
    const button = at.children[index].firstChild;
    if (button.textContent !== text) button.textContent = text;
  }
}
