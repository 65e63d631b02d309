// Owns the figures of several rails: restores and saves over both beside their sum, and the cost of a pulled cable.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { figure } from "./lib/figures.js";

const SCENE = fileURLToPath(new URL("./lib/rails-scene.js", import.meta.url));
const PACES = [100, 200];
const SUM = PACES.reduce((sum, pace) => sum + pace, 0);
const SHARE = { on: "ratio", least: 0.85 };
const CUT = { on: "value", most: 500 };
const SCENES = [
  ["", {}],
  [", of a host's addresses in one network to one address", { vaults: 1 }],
];

export const title = "Two rails of 100 and 200 Mb/s to one vault, over TLS, in network namespaces";

export function run({ isQuick }) {
  return {
    figures: SCENES.flatMap(([name, scene]) => figuresOf(name, scene, isQuick)),
    notes: [
      "rates are of record bytes; a link's pace counts headers of packets, too",
      "what a cut costs is beyond what the rest takes over the other rail, as measured alone; no block was missed",
    ],
  };
}

function figuresOf(name, scene, isQuick) {
  const cuts = isQuick ? [0, 1] : [0, 1, 0, 1, 0, 1];
  const asked = {
    paces: PACES,
    blocks: isQuick ? 30 : 60,
    rounds: isQuick ? 2 : 8,
    cuts,
    ...scene,
  };
  const args = ["-rn", process.execPath, SCENE, JSON.stringify(asked)];
  const text = execFileSync("unshare", args, { stdio: ["ignore", "pipe", "inherit"] });
  const { restores, saves, cuts: made } = JSON.parse(text);
  const missed = made.reduce((sum, cut) => sum + cut.missed, 0);
  if (missed > 0) throw new Error(`${missed} blocks did not come back after a cut`);
  const beside = (rates) => ({ beside: rates.map(() => SUM), of: "of both", floor: SHARE });
  const costs = made.map(({ costMs }) => costMs);
  return [
    figure(`restores over both${name}`, "Mb/s", restores, beside(restores)),
    figure(`saves over both${name}`, "Mb/s", saves, beside(saves)),
    figure(`a cable pulled in mid-restore costs${name}`, "ms", costs, { floor: CUT }),
  ];
}
