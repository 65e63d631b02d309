// Owns the page: hears the server's events and hands them to tables and charts; keeps no more than the server does.
import "./language.js";
import { drawBytes, drawMisses, drawRestores } from "./charts.js";
import {
  showBytes,
  showEngines,
  showFindings,
  showFleet,
  showMisses,
  showMs,
  showRestores,
  showTiles,
  showVaults,
} from "./tables.js";

const POINTS_MAX = 900;
const at = (id) => document.getElementById(id);
let points = [];

const events = new EventSource("events");
events.addEventListener("history", ({ data }) => {
  points = JSON.parse(data);
});
events.addEventListener("view", ({ data }) => show(JSON.parse(data)));
events.addEventListener("trouble", ({ data }) => say(JSON.parse(data).text));
events.addEventListener("error", () => say("the connection is gone; trying again"));

function say(text) {
  if (at("link").textContent !== text) at("link").textContent = text;
}

function show({ status, fleet, findings }) {
  say("live");
  showFindings(at("findings"), findings);
  at("of-gateway").hidden = fleet === null;
  if (fleet !== null) showFleet(at("fleet"), at("waiting"), fleet);
  for (const section of document.querySelectorAll(".of-sidecar")) section.hidden = status === null;
  if (status === null) at("self").textContent = "no sidecar runs here";
  else showSidecar(status);
}

function showSidecar(status) {
  const { version, uptimeMs, counters, ledger } = status;
  at("self").textContent = `${version}, up ${showMs(uptimeMs)}`;
  points.push(pointOf(status));
  if (points.length > POINTS_MAX) points.shift();
  showTiles(at("tiles"), status, rateOf());
  showEngines(at("engines"), status.engines);
  showVaults(at("vaults"), status.vaults);
  showRestores(at("restores"), status.restores);
  showMisses(at("misses"), missesOf(counters), explain);
  drawRestores(at("chart-restores"), status.restores);
  drawMisses(at("chart-misses"), points);
  drawBytes(at("chart-bytes"), points);
  document.body.dataset.restores = String(ledger.restores);
}

function missesOf(counters) {
  return Object.fromEntries(
    Object.entries(counters)
      .filter(([name, count]) => name.startsWith("miss_") && count > 0)
      .map(([name, count]) => [name.slice("miss_".length), count]),
  );
}

function pointOf({ at: time, counters }) {
  const [fetchedBytes, sentBytes] = [counters.bytes_fetched ?? 0, counters.bytes_sent ?? 0];
  return { at: time, fetchedBytes, sentBytes, misses: missesOf(counters) };
}

/** Bytes per second since the point before. */
function rateOf() {
  const [before, last] = points.slice(-2);
  if (last === undefined || last.at <= before.at) return "";
  const seconds = (last.at - before.at) / 1000;
  return `${showBytes(Math.max(0, last.fetchedBytes - before.fetchedBytes) / seconds)}/s`;
}

/** What `tierkv explain` says of the latest requests that missed for this cause. */
async function explain(cause) {
  const box = at("explained");
  const answer = await fetch("requests");
  const requests = answer.ok ? await answer.json() : [];
  const found = requests.filter(({ miss }) => miss === cause).slice(-5);
  const text = found.flatMap(({ req, lines }) => [`$ tierkv explain ${req}`, ...lines]).join("\n");
  const shown = document.createElement("pre");
  shown.tabIndex = 0;
  shown.textContent = text === "" ? "none of the requests that are remembered missed for it" : text;
  box.replaceChildren(shown);
  shown.focus();
}
