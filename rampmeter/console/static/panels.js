// The tables and tiles of one reading.

import { byId, celsius, count, el, keyed, percent, seconds, setAttribute, setText, table, time, UNKNOWN, units } from "./dom.js";
import { may, order } from "./orders.js";

const LATE_S = 30; // by default work is promoted then
const HOT_C = 85;
const FULL = 0.95;

const text = (value, more = {}) => ({ text: value ?? UNKNOWN, ...more });
const sum = (rows, of) => (rows.some((row) => of(row) === null) ? null : rows.reduce((all, row) => all + of(row), 0));
const most = (rows, of) => (rows.some((row) => of(row) === null) ? null : Math.max(0, ...rows.map(of)));
const kindOf = (value, limit) => (value !== null && value > limit ? "bad" : null);

export function totals(page) {
  const { pools, tenants, consumers } = page;
  const ready = consumers === null ? null : consumers.filter((one) => one.state === "ready").length + page.consumers_left_out;
  const all = consumers === null ? null : consumers.length + page.consumers_left_out;
  const lately = tenants.map((one) => one.lately);
  const was = page.scaling === null ? null : (of) => lately.reduce((found, one) => found + of(one), 0);
  const rejected = was && was((one) => one.rejected);
  const tiles = [
    { name: "Unfinished", value: count(sum(pools, (one) => one.records)), about: "requests on the lanes" },
    { name: "To drain", value: seconds(most(pools, (one) => one.drain_s)), about: "the slowest pool" },
    { name: "Oldest", value: seconds(most(pools, (one) => one.oldest_s)), about: "on its lane", kind: kindOf(most(pools, (one) => one.oldest_s), LATE_S) },
    { name: "Consumers", value: all === null ? UNKNOWN : `${count(ready)} of ${count(all)}`, about: "ready", kind: all !== null && ready < all ? "warn" : null },
    { name: "Used", value: units(was && was((one) => one.used_units_per_s)), about: "cost units/s, last minute" },
    { name: "Rejected", value: count(rejected), about: `of ${count(was && was((one) => one.requests))}, last minute`, kind: rejected ? "warn" : null },
  ];
  const make = () => el("div", { class: "tile" }, el("span"), el("strong"), el("small"));
  keyed(byId("totals"), tiles, (one) => one.name, make, (tile, one) => {
    setText(tile.children[0], one.name);
    setText(tile.children[1], one.value);
    setText(tile.children[2], one.about);
    setAttribute(tile.children[1], "class", one.kind);
  });
}

// Lanes ------------------------------------------------------------------------------------------

const poolTables = new Map();
const LANE_COLUMNS = [
  { title: "Lane", cell: (row) => text(row.name, { kind: row.dot }) },
  { title: "Requests", right: true, cell: (row) => text(count(row.records), { ratio: row.share }) },
  { title: "Cost", right: true, cell: (row) => text(units(row.units)) },
  { title: "To drain", right: true, cell: (row) => text(seconds(row.drain_s)) },
  { title: "Oldest", right: true, cell: (row) => text(seconds(row.oldest_s), { kind: kindOf(row.oldest_s, LATE_S) }) },
];

export function pools(page) {
  const make = (pool) => {
    const card = el("article", {}, el("h3"), el("p", { class: "about" }), el("p", { class: "buttons" }));
    poolTables.set(pool.name, table(card, LANE_COLUMNS, "Not read yet."));
    return card;
  };
  keyed(byId("pools"), page.pools, (one) => one.name, make, (card, pool) => {
    setText(card.children[0], pool.name);
    const rate = pool.units_per_s === null ? "at an unknown rate" : `${units(pool.units_per_s)} units/s${pool.is_measured ? "" : " as the autoscaler reckons"}`;
    const drain = pool.drain_s === null ? "time to drain unknown" : `${seconds(pool.drain_s)} to drain`;
    const served = pool.serving === null ? "who serves is unknown" : pool.serving === 0 ? "nobody serves" : `${count(pool.serving)} serving, ${rate}`;
    setText(card.children[1], `${served}; ${drain}${pool.pause ? `; paused by ${pool.pause}` : ""}`);
    setAttribute(card.children[1], "class", pool.pause || pool.serving === 0 && pool.records > 0 ? "about warn" : "about");
    buttons(card.children[2], pauseOf("pool", pool), { label: "Drain…", run: () => order("drain", "pool", pool.name, `Its consumers give their lanes away, end what they run, and do not come back to work.`) });
    poolTables.get(pool.name)(laneRows(pool));
  });
}

function laneRows(pool) {
  if (pool.lanes === null) return [];
  const top = Math.max(1, ...pool.lanes.map((lane) => lane.records));
  const rows = pool.lanes.map((lane) => ({ ...lane, key: `${lane.tier}.${lane.length}`, name: `${lane.tier} ${lane.length}`, dot: `dot ${lane.tier}`, share: lane.records / top }));
  return [...rows, { key: "held", name: "before the lanes", dot: "dot held", records: null, units: pool.held_units, drain_s: pool.held_drain_s, oldest_s: null, share: null }];
}

// Budgets ----------------------------------------------------------------------------------------

const lately = (row, of, shown) => text(row.lately === null ? UNKNOWN : shown(of(row.lately)));
const left = (row) => {
  if (row.units === null || !row.cap_units) return text(UNKNOWN);
  const ratio = row.units / row.cap_units;
  return text(row.units < 0 ? `${units(-row.units)} of debt` : percent(ratio), { ratio, kind: ratio <= 0.05 ? "bad" : ratio < 0.25 ? "warn" : null, title: `${units(row.units)} of ${units(row.cap_units)} units` });
};
const state = (row) => {
  if (row.pause) return text("paused", { kind: "warn", title: `by ${row.pause}` });
  return row.change ? text("changed", { title: `by ${row.change}` }) : text("");
};
const action = (of) => ({ title: "", right: true, cell: (row) => ({ action: of(row) }) });

function pauseOf(kind, row) {
  if (row.pause) return { label: "Resume…", run: () => order("resume", kind, row.name, "Its work may go onto the lanes again.") };
  return { label: "Pause…", run: () => order("pause", kind, row.name, "No more of its work goes onto the lanes; it waits, at most as long as its class may.") };
}

function buttons(place, ...actions) {
  const shown = may() ? actions.filter((one) => one !== null) : [];
  keyed(place, shown, (one) => one.label, (one) => el("button", { type: "button", class: "small" }, one.label), (button, one) => {
    button.onclick = one.run;
  });
}

const tenantTable = table(byId("tenants"), [
  { title: "Tenant", cell: (row) => text(row.name) },
  { title: "Asked/s", right: true, cell: (row) => lately(row, (one) => one.asked_units_per_s, units) },
  { title: "Used/s", right: true, cell: (row) => lately(row, (one) => one.used_units_per_s, units) },
  { title: "Refill/s", right: true, cell: (row) => text(units(row.refill_units_per_s)) },
  { title: "Budget left", right: true, cell: left },
  { title: "Requests", right: true, cell: (row) => lately(row, (one) => one.requests, count) },
  { title: "Rejected", right: true, cell: (row) => ({ ...lately(row, (one) => one.rejected, count), kind: row.lately?.rejected ? "warn" : null }) },
  { title: "", cell: state },
  action((row) => (may() && row.name !== "(other)" ? [pauseOf("tenant", row)] : [])),
], "Nobody asked for anything in the last minute, as far as is known.");

const budgetTable = table(byId("budgets"), [
  { title: "Budget", cell: (row) => text(row.level === "global" ? "global" : `${row.level} ${row.name}`) },
  { title: "Refill/s", right: true, cell: (row) => text(units(row.refill_units_per_s)) },
  { title: "Left", right: true, cell: left },
  { title: "", cell: state },
  action((row) => (may() && row.level !== "global" ? [pauseOf(row.level, row)] : [])),
], "Not read yet.");

export function budgets(page) {
  tenantTable(page.tenants.map((row) => ({ ...row, key: row.name })));
  budgetTable(page.budgets.map((row) => ({ ...row, key: `${row.level} ${row.name}` })));
}

// Consumers --------------------------------------------------------------------------------------

const STATES = { ready: "good", closed: "warn", draining: "warn", silent: "bad" };
const share = (value, limit) => text(percent(value), { ratio: value, kind: kindOf(value, limit) });

const consumerTable = table(byId("consumers"), [
  { title: "Consumer", cell: (row) => text(row.consumer) },
  { title: "Pool", cell: (row) => text(row.pool + (row.role && row.role !== "general" ? ` (${row.role})` : "")) },
  { title: "State", cell: (row) => text(row.state === "silent" ? `silent for ${seconds(Math.round(row.silent_s))}` : row.why ?? row.state, { kind: STATES[row.state] }) },
  { title: "GPU", cell: (row) => text(row.gpu_type) },
  { title: "Runs", right: true, cell: (row) => text(count(row.running)) },
  { title: "Queued cost", right: true, cell: (row) => text(units(row.queued_units)) },
  { title: "Serves/s", right: true, cell: (row) => text(units(row.units_per_s)) },
  { title: "TTFT", right: true, cell: (row) => text(seconds(row.ttft_s)) },
  { title: "KV used", right: true, cell: (row) => share(row.kv_ratio, FULL) },
  { title: "Busy", right: true, cell: (row) => share(row.busy_ratio, 2) },
  { title: "Memory", right: true, cell: (row) => share(row.memory_ratio, FULL) },
  { title: "Temperature", right: true, cell: (row) => text(celsius(row.temperature_c), { kind: kindOf(row.temperature_c, HOT_C) }) },
  { title: "Lanes", right: true, cell: (row) => text(count(row.partitions)) },
  action((row) => (may() && row.state !== "silent" && row.state !== "draining" ? [{ label: "Drain…", run: () => order("drain", "consumer", row.consumer, "It gives its lanes away, ends what it runs, and does not come back to work.") }] : [])),
], "No consumer told of itself in the last minute, as far as is known.");

export function consumers(page) {
  const rows = page.consumers ?? [];
  consumerTable(rows.map((row) => ({ ...row, key: row.consumer })));
  setText(moreConsumers, page.consumers_left_out ? `and ${count(page.consumers_left_out)} more` : "");
}

const moreConsumers = el("p", { class: "about" });
byId("consumers").append(moreConsumers);

// Autoscaler -------------------------------------------------------------------------------------

const VERDICTS = { up: "▲", down: "▼", hold: "•" };
const of = (name, shown) => (row) => text(row.inputs[name] === undefined ? UNKNOWN : shown(row.inputs[name]));

const scalingTable = table(byId("scaling"), [
  { title: "Time", cell: (row) => text(time(row.at_s)) },
  { title: "Pool", cell: (row) => text(row.pool) },
  { title: "Replicas", cell: (row) => text(row.before === row.after ? `${count(row.after)}` : `${VERDICTS[row.verdict] ?? ""} ${count(row.before)} → ${count(row.after)}`, { kind: row.verdict === "hold" ? null : "strong" }) },
  { title: "Reason", cell: (row) => text(row.reason, { kind: row.reason === "lag_unavailable" || row.reason.startsWith("at_") ? "warn" : null }) },
  { title: "What it means", cell: (row) => text(row.inputs.problem ? `${row.words}: ${row.inputs.problem}` : row.words, { kind: "long" }) },
  { title: "Waiting", right: true, cell: of("waiting_units", units) },
  { title: "Arriving/s", right: true, cell: of("arrival_units_per_s", units) },
  { title: "One serves/s", right: true, cell: of("replica_units_per_s", units) },
  { title: "Oldest", right: true, cell: of("oldest_age_s", seconds) },
], "No decision of the autoscaler, as far back as is read.");

export function scaling(page) {
  scalingTable((page.scaling ?? []).map((row) => ({ ...row, key: `${row.at_s} ${row.pool}` })));
}
