// Owns the page's charts: uPlot in the colours of the scheme, as wide as the page, drawn anew with each account.
import uPlot from "./uplot/uPlot.esm.js";

const HEIGHT = 220;
const CAUSES_MAX = 4;
const COLOURS = ["--first", "--second", "--third", "--fourth"];
const MINUTE_S = 60;
/** Seconds shown on each side of a point that is alone. */
const ALONE_S = 30;
const HOUR_S = 3600;
const DAY_S = 86_400;
/** Seconds from one label of the time axis to the next; less than one would repeat a label. */
const STEPS_S = [
  1,
  2,
  5,
  10,
  15,
  30,
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE_S),
  ...[1, 2, 3, 6, 12].map((hours) => hours * HOUR_S),
  ...[1, 2, 5, 10, 30, 100].map((days) => days * DAY_S),
];
const charts = new Map();

/** Local time as the page's tables have it, to its `length`: 5 to the minute, 8 to the second. */
const clock = (s, length) => new Date(s * 1000).toTimeString().slice(0, length);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Seconds are shown where the minutes of several would be the same. */
function labels(all, stepS) {
  return all.map((at) => clock(at, stepS < MINUTE_S ? 8 : 5));
}

/** Made anew where its lines or the scheme have changed, else given new data. */
function draw(at, names, data, unit, isPoints = false) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const key = `${names.join()} ${dark}`;
  const known = charts.get(at);
  const width = Math.max(280, at.clientWidth);
  if (known?.key === key) {
    if (known.chart.width !== width) known.chart.setSize({ width, height: HEIGHT });
    known.chart.setData(data);
    return;
  }
  known?.chart.destroy();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 } };
  const lines = names.map((label, index) => ({
    label,
    stroke: colour(COLOURS[index]),
    width: 2,
    ...(isPoints ? { paths: () => null, points: { show: true, size: index === 0 ? 8 : 5 } } : {}),
    value: (_chart, value) =>
      value === null || value === undefined ? "-" : `${Number(value.toPrecision(3))} ${unit}`,
  }));
  const options = {
    width,
    height: HEIGHT,
    series: [
      {
        label: "time",
        value: (_chart, s) => (s === null ? "-" : clock(s, 8)),
      },
      ...lines,
    ],
    axes: [
      {
        ...axis,
        space: 80,
        incrs: STEPS_S,
        values: (_chart, all, _axis, _space, stepS) => labels(all, stepS),
      },
      { ...axis, size: 60, label: unit, labelSize: 20 },
    ],
    scales: {
      x: {
        // Both are null while there is no point; of one alone uPlot would show years.
        range: ({ data: [all] }, from, to) =>
          all.length === 1 ? [all[0] - ALONE_S, all[0] + ALONE_S] : [from, to],
      },
      y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    cursor: { drag: { x: false, y: false } },
  };
  charts.set(at, { key, chart: new uPlot(options, data, at) });
}

/** Differences of totals, per second: from each point to the next. */
function rates(points, of) {
  return points.slice(1).map((point, index) => {
    const seconds = (point.at - points[index].at) / 1000;
    return seconds <= 0 ? null : Math.max(0, of(point) - of(points[index])) / seconds;
  });
}

const times = (points) => points.slice(1).map(({ at }) => at / 1000);

export function drawBytes(at, points) {
  const mega = (name) => rates(points, (point) => point[name] / 1e6);
  draw(
    at,
    ["from vaults", "to vaults"],
    [times(points), mega("fetchedBytes"), mega("sentBytes")],
    "MB/s",
  );
}

export function drawMisses(at, points) {
  const totals = points.at(-1)?.misses ?? {};
  const causes = Object.entries(totals)
    .sort(([, a], [, b]) => b - a)
    .slice(0, CAUSES_MAX)
    .map(([cause]) => cause);
  const names = causes.length === 0 ? ["misses"] : causes;
  const lines = names.map((cause) =>
    rates(points, ({ misses }) => (misses[cause] ?? 0) * MINUTE_S),
  );
  draw(at, names, [times(points), ...lines], "a minute");
}

export function drawRestores(at, restores) {
  const seconds = ({ lookup, fetch, load }) => ((lookup ?? 0) + (fetch ?? 0) + (load ?? 0)) / 1000;
  // Nothing was measured before the first fetches and loads: 0 predicts nothing.
  const predicted = (one) => (one.predicted.fetch === null ? null : seconds(one.predicted) || null);
  const sorted = restores.toSorted((a, b) => a.at - b.at);
  const data = [
    sorted.map((one) => one.at / 1000),
    sorted.map((one) => seconds(one.actual)),
    sorted.map(predicted),
  ];
  draw(at, ["measured", "predicted"], data, "s", true);
}
