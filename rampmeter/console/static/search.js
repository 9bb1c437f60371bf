// What became of one request: the timeline of `rampmeter explain`.

import { byId, el, seconds, UNKNOWN, units } from "./dom.js";
import { may, order } from "./orders.js";

const KINDS = { completed: "good", open: "open" };
const WAITS = { queued_s: "queued", admitted_s: "to its lane", lane_s: "on it", engine_s: "in the engine", first_token_s: "first token after" };
const ENDS = ["answered", "ended", "settled"];
const FAULTS = ["rejected", "refused", "failed", "dead_lettered", "cancelled"];
let shown = null;

export function begin() {
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("search-id").value.trim();
    if (id === "") return;
    const hash = `#request=${encodeURIComponent(id)}`;
    if (location.hash === hash) look();
    else location.hash = hash;
  });
  addEventListener("hashchange", look);
  look();
}

export function again() {
  if (shown !== null) show(shown);
}

async function look() {
  const named = new URLSearchParams(location.hash.slice(1)).get("request");
  shown = null;
  const place = byId("found");
  place.hidden = named === null;
  if (named === null) return;
  byId("search-id").value = named;
  place.replaceChildren(head(named, null), el("p", { class: "about" }, "Reading the log…"));
  try {
    const answer = await fetch(`api/request?id=${encodeURIComponent(named)}`);
    const told = await answer.json();
    if (new URLSearchParams(location.hash.slice(1)).get("request") !== named) return;
    if (answer.ok) show(told);
    else place.replaceChildren(head(named, null), el("p", { class: "fault" }, told.error));
  } catch {
    place.replaceChildren(head(named, null), el("p", { class: "fault" }, "The console does not answer."));
  }
}

function head(id, state) {
  const close = el("button", { type: "button", class: "small", onclick: () => { location.hash = ""; } }, "Close");
  const badge = state === null ? null : el("span", { class: `badge ${KINDS[state] ?? "warn"}` }, state);
  return el("div", { class: "title" }, el("h2", { id: "found-title" }, id), badge, close);
}

function show(told) {
  shown = told;
  const title = head(told.id, told.state);
  if (told.state === "open" && may()) {
    const cancel = () => order("cancel", "request", told.id, "It ends as cancelled, whether it waits or runs; what it used until then is charged.");
    title.append(el("button", { type: "button", class: "small", onclick: cancel }, "Cancel it…"));
  }
  byId("found").replaceChildren(title, facts(told), steps(told.events), ...notes(told));
}

function facts(told) {
  const waits = Object.entries(WAITS).filter(([name]) => told.waits?.[name] !== undefined).map(([name, words]) => `${words} ${seconds(told.waits[name])}`);
  const price = told.price ? `${units(told.price.cost_units)} units expected` : null;
  const cost = told.cost_units === undefined ? null : `${units(told.cost_units)} units`;
  const pairs = [
    ["Reason", told.reason], ["Tenant", told.tenant], ["Model", told.model],
    ["Class", [told.priority, told.length].filter(Boolean).join(" ") || null], ["Pool", told.pool],
    ["Attempts", told.attempts ? String(told.attempts) : null], ["Cost", [cost, price].filter(Boolean).join(", ") || null],
    ["Waits", waits.join(", ") || null],
  ].filter(([, value]) => value);
  return el("dl", {}, ...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function steps(events) {
  return el("ol", { class: "steps" }, ...events.map((event) => {
    const kind = FAULTS.includes(event.step) ? "bad" : ENDS.includes(event.step) ? "good" : "";
    const more = Object.entries(event.facts ?? {}).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${typeof value === "number" ? units(value) : value}`);
    const times = event.times > 1 ? ` (${event.times} times)` : "";
    const at = new Date(1000 * event.at_s);
    const clock = `${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
    return el("li", { class: kind },
      el("time", { datetime: at.toISOString() }, clock),
      el("span", { class: "after" }, event.after_s === undefined ? "" : `+${seconds(event.after_s)}`),
      el("span", { class: "step" }, event.step.replaceAll("_", " ")),
      el("span", { class: "what" }, event.what + times, el("small", {}, [event.by, event.record, ...more].filter(Boolean).join(" · ") || UNKNOWN)));
  }));
}

function notes(told) {
  const found = (told.missing ?? []).map((what) => `Not in the log: ${what}.`);
  if (told.batched) {
    const named = told.batched_with.slice(0, 8).map((one) => `${one.id} (${seconds(one.together_s)})`).join(", ");
    found.unshift(`In the engine with ${named}${told.batched > 8 ? ` and ${told.batched - 8} more` : ""}.`);
  }
  return found.map((what) => el("p", { class: "about" }, what));
}
