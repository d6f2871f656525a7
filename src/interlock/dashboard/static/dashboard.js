// Every page works without this file. It adds live updates, keyboard shortcuts and copy buttons, and ignores repeated submits.
"use strict";

const EVERY = 1000;
const LONGEST_WAIT = 30000;
const LATE = 5000;
const GUARD = 1000;
const KEPT_ATTRIBUTES = new Set(["open", "value", "checked", "hidden"]);

// --- Live: fetch the page again and change only what differs, so that nothing moves and typed text stays.

// `form.id` is the field named "id", if there is one; the attribute is always the id.
const idOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") : null;

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && idOf(one) === idOf(other);
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  // A form that may be partly filled in stays; a part with another key is new.
  if (old.hasAttribute("data-keep") && old.getAttribute("data-keep") === fresh.getAttribute("data-keep")) return;
  morphAttributes(old, fresh);
  if (isPointedAt(old)) morphInPlace(old, fresh);
  else morphChildren(old, fresh);
}

function morphAttributes(old, fresh) {
  const isKept = (name) => KEPT_ATTRIBUTES.has(name) && old.nodeName !== "PROGRESS";
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isKept(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (!isKept(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function morphChildren(old, fresh) {
  const byId = new Map([...old.children].filter(idOf).map((child) => [idOf(child), child]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = byId.get(idOf(wanted));
    if (known && known !== at) {
      old.insertBefore(known, at);
      at = known;
    }
    if (at && same(at, wanted)) {
      morph(at, wanted);
      at = at.nextSibling;
    } else {
      const added = document.importNode(wanted, true);
      old.insertBefore(added, at);
      if (added.nodeType === Node.ELEMENT_NODE) enliven(added);
    }
  }
  while (at) {
    const next = at.nextSibling;
    if (!isSelected(at)) at.remove();
    at = next;
  }
}

// A selected row stays, also when newer rows have pushed it off the page.
function isSelected(node) {
  return node.nodeName === "TR" && node.querySelector("input[name=id]:checked") !== null;
}

// Rows keep their position while one is hovered or focused: their content changes, and new rows wait.
let waiting = 0;

function isPointedAt(part) {
  return part.hasAttribute("data-still") && (part.matches(":hover") || part.querySelector(":focus-visible") !== null);
}

function morphInPlace(old, fresh) {
  const wanted = new Map([...fresh.children].map((row) => [idOf(row), row]));
  for (const row of old.children) {
    const now = wanted.get(idOf(row));
    if (now) morph(row, now);
    row.classList.toggle("gone", !now);
    wanted.delete(idOf(row));
  }
  waiting = wanted.size;
}

let held = false;
let wait = EVERY;
let timer = 0;
const liveSwitch = document.querySelector("[data-live-switch]");
const main = document.querySelector("main[data-live]");

// A log that is scrolled to its end stays at the end.
const isAtEnd = (log) => log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
const toEnd = (log) => { log.scrollTop = log.scrollHeight; };

function isSelecting() {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && main.contains(selection.anchorNode);
}

async function refresh() {
  timer = 0;
  if (held || document.hidden) return;
  if (isSelecting()) return schedule();
  const asked = performance.now();
  const late = setTimeout(lose, LATE);
  try {
    const answer = await fetch(location.href, { headers: { "interlock-live": "1" }, cache: "no-store" });
    if (answer.redirected) return location.reload();
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (held || isSelecting()) return schedule();
    document.title = fresh.title;
    const ends = [...main.querySelectorAll("[data-tail]")].filter(isAtEnd);
    waiting = 0;
    morph(main, fresh.querySelector("main"));
    ends.forEach(toEnd);
    mark();
    // Slow responses make the refreshes less frequent.
    wait = Math.min(Math.max(EVERY, 3 * (performance.now() - asked)), LONGEST_WAIT);
    liveSwitch.classList.remove("lost");
    liveSwitch.textContent = waiting ? `live, ${waiting} new` : "live";
  } catch {
    wait = Math.min(wait * 2, LONGEST_WAIT);
    lose();
  } finally {
    clearTimeout(late);
  }
  schedule();
}

function lose() {
  liveSwitch.classList.add("lost");
  liveSwitch.textContent = "offline";
}

function schedule() {
  if (!timer && !held && !document.hidden) timer = setTimeout(refresh, wait);
}

function hold(still) {
  held = still;
  liveSwitch.setAttribute("aria-pressed", String(!held));
  liveSwitch.textContent = held ? "paused" : "live";
  if (!held) refresh();
}

function startLive() {
  liveSwitch.hidden = false;
  liveSwitch.addEventListener("click", () => hold(!held));
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  schedule();
}

// --- Copying.

async function copy(button) {
  const text = button.dataset.copyText
    ?? (button.dataset.copyLink && location.origin + button.dataset.copyLink)
    ?? button.parentElement.querySelector(":scope > pre, :scope > .raw > pre").textContent;
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = button.dataset.name ?? "Copy"; }, 1500);
}

// --- Keys. A single key moves the focus; it never decides or changes anything.

let current = null;
let goes = false;

const rows = () => [...document.querySelectorAll("[data-row]")];

function mark() {
  for (const row of rows()) row.classList.toggle("at", row.id === current);
}

function move(step) {
  const all = rows();
  if (!all.length) return openNeighbor(step);
  const at = all.findIndex((row) => row.id === current);
  const row = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
  current = row.id;
  mark();
  row.querySelector("a")?.focus();
  row.scrollIntoView({ block: "nearest" });
}

// A page without rows may itself have a next and a previous one.
function openNeighbor(step) {
  document.querySelector(`main a[rel=${step > 0 ? "next" : "prev"}]`)?.click();
}

function tick() {
  const box = document.getElementById(current)?.querySelector("input[type=checkbox]");
  if (!box) return;
  box.checked = !box.checked;
  updateSelection();
}

function goTo(letter) {
  const link = [...document.querySelectorAll(".top nav a")].find((one) => one.dataset.key === letter);
  if (link) link.click();
}

function isTyping(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.nodeName) && target.type !== "checkbox";
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  x: tick,
  e: () => document.querySelector(".decide fieldset :is(input, select, textarea)")?.focus(),
  u: () => document.querySelector("main .crumbs a")?.click(),
  g: () => { goes = true; setTimeout(() => { goes = false; }, 1500); },
  p: () => main && hold(!held),
  "/": () => document.querySelector("[data-filter]")?.focus(),
  "?": () => document.getElementById("keys").showModal(),
};

function onKey(event) {
  if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const wanted = goes ? () => goTo(event.key) : KEYS[event.key] ?? focusOf(event.key);
  if (goes) goes = false;
  if (!wanted) return;
  event.preventDefault();
  wanted();
}

function focusOf(key) {
  const button = [...document.querySelectorAll("[data-hotkey]")].find((one) => one.dataset.hotkey === key);
  return button && (() => button.focus());
}

// --- Forms. A second click must never act on another item than the first.

function enliven(part) {
  for (const button of part.querySelectorAll("[data-copy], [data-copy-text], [data-copy-link]")) button.hidden = false;
  for (const one of part.querySelectorAll("[data-select-all], [data-script]")) one.hidden = false;
  for (const log of part.querySelectorAll("[data-tail]")) toEnd(log);
}

function onClick(event) {
  const button = event.target.closest("[data-copy], [data-copy-text], [data-copy-link]");
  if (button) copy(button);
}

function onInput(event) {
  if (event.target.matches(".decide [data-initial]")) showProposal(event.target);
}

function onChange(event) {
  if (event.target.matches("[data-select-all]")) {
    for (const box of document.querySelectorAll("tbody input[name=id]")) box.checked = event.target.checked;
  }
  updateSelection();
}

// Below an edited field of an approval stands what was proposed.
function showProposal(field) {
  const proposed = field.dataset.initial;
  const isBox = field.type === "checkbox";
  const chosen = field.nodeName === "SELECT" ? field.selectedOptions[0]?.textContent ?? "" : field.value;
  const isEdited = isBox ? field.checked !== (proposed === "true") : chosen.replace(/\r\n?/g, "\n") !== proposed.replace(/\r\n?/g, "\n");
  const place = field.closest(".field");
  let note = place.querySelector(":scope > .proposed");
  if (!isEdited) return note?.remove();
  if (!note) {
    note = document.createElement("p");
    note.className = "faint hint proposed";
    note.append("proposed: ", document.createElement("del"));
    place.append(note);
  }
  note.lastChild.textContent = isBox ? (proposed === "true" ? "yes" : "no") : proposed || "empty";
}

// Actions on selected jobs need a selection.
function updateSelection() {
  const scope = document.getElementById("scope");
  if (!scope) return;
  const isMissing = scope.value === "selected" && !document.querySelector("tbody input[name=id]:checked");
  for (const button of document.querySelectorAll("[data-needs-selection]")) button.disabled = isMissing;
  document.querySelector("[data-selection-hint]").hidden = !isMissing;
}

// The buttons of a page that replaced another one wait a moment: they may be under a click meant for the other page.
function guard() {
  const all = document.querySelector("main .notice") ? "main form[method=post]" : "form[data-guard]";
  const buttons = [...document.querySelectorAll(`:is(${all}) button:not([hidden])`)];
  for (const button of buttons) button.setAttribute("aria-disabled", "true");
  setTimeout(() => { for (const button of buttons) button.removeAttribute("aria-disabled"); }, GUARD);
}

// A page that the back button restores may show forms of what was decided since.
function onPageShow(event) {
  if (event.persisted) location.reload();
}

// The token of a link is in the URL fragment, which is never sent to a server; it goes into the body of a form.
function takeFragment() {
  const form = document.querySelector("form[data-fragment]");
  const token = location.hash.slice(1);
  if (!form || !token) return;
  form.elements[form.dataset.fragment].value = token;
  history.replaceState(null, "", location.pathname);
  form.requestSubmit();
}

// A form is submitted once; a filter puts only its filled fields into the address.
function onSubmit(event) {
  const form = event.target;
  if (form.matches("form.filter")) {
    event.preventDefault();
    const filled = [...new FormData(form)].filter(([, value]) => value.trim());
    location.assign(form.getAttribute("action") + (filled.length ? `?${new URLSearchParams(filled)}` : ""));
  } else if (form.method === "post") {
    const isGuarded = event.submitter?.getAttribute("aria-disabled") === "true";
    if (isGuarded || form.hasAttribute("data-submitted")) return event.preventDefault();
    form.setAttribute("data-submitted", "");
    held = true;  // a refresh of this page is no longer of use
  }
}

// The notice of an action is read out first, and not shown again on reload.
function showNotice() {
  const url = new URL(location.href);
  if (!url.searchParams.has("notice")) return;
  const notice = document.querySelector(".notice");
  url.searchParams.delete("notice");
  url.searchParams.delete("n");
  history.replaceState(null, "", url);
  if (!notice) return;
  document.querySelector("main").before(notice);
  notice.tabIndex = -1;
  notice.focus();  // screen readers read it, and the next Tab continues after it
}

function focusFirstError() {
  document.querySelector("main [aria-invalid=true]")?.focus();
}

// Scroll a navigation bar that is wider than the screen to the current page.
function showCurrentPage() {
  document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

enliven(document);
showCurrentPage();
guard();
updateSelection();
document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.addEventListener("change", onChange);
document.addEventListener("input", onInput);
for (const field of document.querySelectorAll(".decide :is(input, select, textarea)[data-initial]")) showProposal(field);
document.addEventListener("submit", onSubmit);
window.addEventListener("pageshow", onPageShow);
takeFragment();
showNotice();
focusFirstError();
if (main) startLive();
