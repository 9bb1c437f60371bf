// Waits by class and queues by tier over time, drawn by uPlot.

import { byId, count, seconds } from "./dom.js";

const CLASSES = ["high", "medium", "low"];
const TIERS = [...CLASSES, "aged"];
const JOINED_S = 30; // a line goes on over a gap of so long
const SHORTEST_S = 120;
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120].map((minutes) => 60 * minutes);
const HEIGHT = 230;

export class Charts {
  constructor(historyS, stepS) {
    this.historyS = historyS;
    this.stepS = stepS;
    this.waits = new Map();
    this.queues = new Map();
    this.make();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
    byId("quantile").addEventListener("change", () => this.draw(this.nowS));
  }

  make() {
    this.waitChart?.destroy();
    this.queueChart?.destroy();
    this.waitChart = plot(byId("waits").querySelector(".chart"), CLASSES, seconds, 0.1);
    this.queueChart = plot(byId("queues").querySelector(".chart"), TIERS, count, 10);
    if (this.nowS) this.draw(this.nowS);
  }

  clear() {
    this.waits.clear();
    this.queues.clear();
  }

  take({ waits, queues }) {
    for (const point of waits) this.waits.set(point.at_s, point);
    for (const point of queues) this.queues.set(point.at_s, point);
  }

  draw(nowS) {
    this.nowS = nowS;
    const last = Math.floor(nowS / this.stepS) * this.stepS;
    const oldest = last - this.historyS;
    for (const points of [this.waits, this.queues]) {
      for (const at of points.keys()) if (at < oldest) points.delete(at);
    }
    const known = Math.min(...this.waits.keys(), ...this.queues.keys(), last - SHORTEST_S);
    const first = Math.max(oldest, known);
    const times = [];
    for (let at = first; at <= last; at += this.stepS) times.push(at);
    const quantile = byId("quantile").value;
    const wait = (name) => times.map((at) => this.waits.get(at)?.waits_s[name]?.[quantile] ?? null);
    const queued = (tier) => times.map((at) => this.queues.get(at)?.queued[tier] ?? null);
    const drawn = [[this.waitChart, [times, ...CLASSES.map(wait)]], [this.queueChart, [times, ...TIERS.map(queued)]]];
    for (const [chart, data] of drawn) {
      chart.setData(data);
      // Nobody points at a moment: the legend tells the last whole step.
      if (chart.cursor.idx === null || chart.cursor.left < 0) chart.setLegend({ idx: times.length - 2 });
    }
  }
}

function plot(place, names, shown, least) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const series = names.map((name) => ({
    label: name,
    stroke: colour(name),
    width: 2,
    points: { size: 4, fill: colour(name) },
    gaps: (u, _series, _from, _to, gaps) => gaps.filter(([from, to]) => u.posToVal(to, "x", true) - u.posToVal(from, "x", true) > JOINED_S),
    value: (_u, value) => shown(value),
  }));
  const made = new uPlot({
    width: Math.max(200, place.clientWidth),
    height: HEIGHT,
    cursor: { y: false, drag: { x: false, y: false } },
    legend: { live: true, markers: { width: 0, fill: (_u, at) => colour(names[at - 1] ?? "muted") } },
    scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(least, max * 1.1)] } },
    axes: [
      { ...axis, values: (_u, times) => times.map((at) => new Date(1000 * at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })), space: 70, incrs: MINUTES },
      { ...axis, values: (_u, values) => values.map((value) => shown(value)), size: 62 },
    ],
    series: [{ label: "time", value: (_u, at) => (at === null ? "–" : new Date(1000 * at).toLocaleTimeString("en-GB")) }, ...series],
  }, [[0], ...names.map(() => [null])], place);
  new ResizeObserver(() => made.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT })).observe(place);
  return made;
}
