// Orders: a token that lives in this page only, and a question before each one.

import { byId, setText } from "./dom.js";

let token = null;
let onChange = () => {};

export const may = () => token !== null;

const headers = (given) => ({ Authorization: `Bearer ${given}` });

export async function begin(changed) {
  onChange = changed;
  const about = await (await fetch("api/console")).json();
  const button = byId("unlock");
  button.hidden = !about.can_order;
  button.addEventListener("click", () => {
    if (may()) lock();
    else byId("token-dialog").showModal();
  });
  return about;
}

function lock() {
  token = null;
  setText(byId("unlock"), "Give orders…");
  onChange();
}

for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}

byId("token-dialog").addEventListener("close", () => {
  byId("token").value = "";
  setText(byId("token-fault"), "");
});

byId("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = byId("token").value;
  const about = await (await fetch("api/console", { headers: headers(given) })).json();
  if (!about.may_order) {
    setText(byId("token-fault"), "This is not the token.");
    return;
  }
  token = given;
  setText(byId("unlock"), "Lock");
  byId("token-dialog").close();
  onChange();
});

let asked = null;

export function order(action, kind, name, means, more = {}) {
  asked = { action, kind, name, ...more };
  const verb = action[0].toUpperCase() + action.slice(1);
  setText(byId("confirm-title"), `${verb} the ${kind} ${name}?`);
  setText(byId("confirm-text"), means);
  setText(byId("confirm-do"), verb);
  setText(byId("confirm-fault"), "");
  byId("confirm-dialog").showModal();
}

byId("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = byId("confirm-do");
  button.disabled = true;
  const fault = await send(asked);
  button.disabled = false;
  if (fault !== null) {
    setText(byId("confirm-fault"), fault);
    return;
  }
  byId("confirm-dialog").close();
  const notice = byId("notice");
  setText(notice, `Ordered: ${asked.action} the ${asked.kind} ${asked.name}. The page shows it with the next readings.`);
  notice.hidden = false;
  setTimeout(() => { notice.hidden = true; }, 10_000);
});

async function send(body) {
  try {
    const options = { method: "POST", headers: { ...headers(token), "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const answer = await fetch("api/orders", options);
    return answer.ok ? null : (await answer.json()).error;
  } catch {
    return "The console does not answer.";
  }
}
