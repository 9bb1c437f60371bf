// Follows the readings, and says what cannot be read and since when.

import { Charts } from "./charts.js";
import { byId, el, keyed, setAttribute, setText, time } from "./dom.js";
import * as orders from "./orders.js";
import * as panels from "./panels.js";
import * as search from "./search.js";

const AGAIN_MS = 3000;
const SILENT_MS = 8000;
let charts = null;
let last = null;
let lastMs = 0;

function show(page) {
  last = page;
  lastMs = performance.now();
  panels.totals(page);
  panels.pools(page);
  panels.budgets(page);
  panels.consumers(page);
  panels.scaling(page);
  const sources = new Map(page.sources.map((one) => [one.name, one]));
  banner(general(sources));
  for (const section of document.querySelectorAll("[data-sources]")) mark(section, sources);
  const failing = page.sources.filter((one) => one.problem !== null);
  keyed(byId("sources"), page.sources, (one) => one.name, () => el("span"), (line, one) => {
    setAttribute(line, "class", one.problem === null ? "source good" : "source bad");
    setAttribute(line, "title", one.problem);
    setText(line, `${one.name} ${one.problem === null ? time(one.good_s) : `last read ${one.good_s === null ? "never" : time(one.good_s)}`}`);
  });
  connected(failing.length ? `${failing.length} of ${page.sources.length} sources not read` : `live, ${time(page.now_s)}`, failing.length ? "warn" : "good");
}

const since = (source) => (source.good_s === null ? "not read yet" : `last good reading at ${time(source.good_s)}`);

// What everything else stands on is said once, on top.
function general(sources) {
  const lanes = sources.get("lanes");
  return lanes === undefined || lanes.problem === null ? null : `The lanes cannot be read (${since(lanes)}): ${lanes.problem}`;
}

function mark(section, sources) {
  const failing = section.dataset.sources.split(" ").map((name) => sources.get(name)).filter((one) => one && one.problem !== null);
  let note = section.querySelector(":scope > .stale");
  section.classList.toggle("is-stale", failing.length > 0);
  if (failing.length === 0 || section.classList.contains("tiles")) {
    note?.remove();
    return;
  }
  if (note === null) {
    note = el("p", { class: "stale", role: "status" });
    section.querySelector(":scope > .title").after(note);
  }
  const why = general(sources) === null ? `: ${failing[0].problem}` : "";
  setText(note, `Not of now. ${failing.map((one) => `${one.name} ${since(one)}`).join(", ")}${why}`);
}

function connected(text, kind) {
  setText(byId("connection"), text);
  setAttribute(byId("connection"), "class", `pill ${kind}`);
}

function banner(text) {
  const place = byId("banner");
  place.hidden = text === null;
  setText(place, text ?? "");
}

function cut(why) {
  document.body.classList.add("is-cut");
  connected("no connection", "bad");
  banner(`${why} ${last === null ? "Nothing was read yet." : `The figures are of ${time(last.now_s)}.`}`);
}

function follow() {
  const source = new EventSource("api/readings");
  source.addEventListener("history", (event) => {
    charts.clear();
    charts.take(JSON.parse(event.data));
  });
  source.addEventListener("reading", (event) => {
    const told = JSON.parse(event.data);
    document.body.classList.remove("is-cut");
    charts.take(told);
    charts.draw(told.page.now_s);
    show(told.page);
  });
  source.addEventListener("error", () => {
    cut("The console does not answer, or as many pages are open as it allows.");
    source.close();
    setTimeout(follow, AGAIN_MS);
  });
}

async function begin() {
  try {
    const about = await orders.begin(() => {
      if (last !== null) show(last);
      search.again();
    });
    charts = new Charts(about.history_s, about.step_s);
  } catch {
    cut("The console does not answer.");
    setTimeout(begin, AGAIN_MS);
    return;
  }
  search.begin();
  follow();
  setInterval(() => {
    if (last !== null && performance.now() - lastMs > SILENT_MS) cut("No reading has come for some seconds.");
  }, 1000);
}

begin();
