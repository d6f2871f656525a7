// Everything works without this file. With it pages refresh themselves, and keys and copy buttons work.
"use strict";

const EVERY = 1000;
const LONGEST_WAIT = 30000;
const LATE = 5000;
const KEPT_ATTRIBUTES = new Set(["open", "value", "checked", "hidden"]);

// --- Live: fetch the page again and change only what differs, so that nothing jumps and nothing typed is lost.

// A form answers `form.id` with its field of that name, if it has one; the attribute is always the id.
const idOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") : null;

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && idOf(one) === idOf(other);
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  // What somebody may be filling in stays as it is; a part of another kind in its place is new.
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
    if (!isMarked(at)) at.remove();
    at = next;
  }
}

// A row that somebody has marked stays, also when newer ones have pushed it off the page.
function isMarked(node) {
  return node.nodeName === "TR" && node.querySelector("input[name=id]:checked") !== null;
}

// Rows stay where they are while somebody is about to press one: what they say changes, and what is new waits.
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

// A log that is read at its end stays there; one that is read further up stays where it is.
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
    // A look that costs the server much is taken more seldom.
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
  liveSwitch.textContent = "no answer";
}

function schedule() {
  if (!timer && !held && !document.hidden) timer = setTimeout(refresh, wait);
}

function hold(still) {
  held = still;
  liveSwitch.setAttribute("aria-pressed", String(!held));
  liveSwitch.textContent = held ? "held" : "live";
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
    ?? button.parentElement.querySelector("pre").textContent;
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// --- Keys. A single key moves the focus, it never decides or changes anything.

let current = null;
let goes = false;

const rows = () => [...document.querySelectorAll("[data-row]")];

function mark() {
  for (const row of rows()) row.classList.toggle("at", row.id === current);
}

function move(step) {
  const all = rows();
  if (!all.length) return turn(step);
  const at = all.findIndex((row) => row.id === current);
  const row = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
  current = row.id;
  mark();
  row.querySelector("a")?.focus();
  row.scrollIntoView({ block: "nearest" });
}

// Where there are no rows the page itself may be one of a row.
function turn(step) {
  document.querySelector(`main a[rel=${step > 0 ? "next" : "prev"}]`)?.click();
}

function tick() {
  const box = document.getElementById(current)?.querySelector("input[type=checkbox]");
  if (box) box.checked = !box.checked;
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

// --- Small things.

function enliven(part) {
  for (const button of part.querySelectorAll("[data-copy], [data-copy-text], [data-copy-link]")) button.hidden = false;
  for (const one of part.querySelectorAll("[data-mark-all], [data-script]")) one.hidden = false;
  for (const log of part.querySelectorAll("[data-tail]")) toEnd(log);
}

function onClick(event) {
  const button = event.target.closest("[data-copy], [data-copy-text], [data-copy-link]");
  if (button) copy(button);
}

function onChange(event) {
  if (!event.target.matches("[data-mark-all]")) return;
  for (const box of document.querySelectorAll("tbody input[name=id]")) box.checked = event.target.checked;
}

// The token of a link is in the fragment, which no server sees; from there it goes into the body of a form.
function takeFragment() {
  const form = document.querySelector("form[data-fragment]");
  const token = location.hash.slice(1);
  if (!form || !token) return;
  form.elements[form.dataset.fragment].value = token;
  history.replaceState(null, "", location.pathname);
  form.requestSubmit();
}

// An address says only what is looked for, and can be read.
function onSubmit(event) {
  const form = event.target;
  if (!form.matches("form.filter")) return;
  event.preventDefault();
  const said = [...new FormData(form)].filter(([, value]) => value.trim());
  location.assign(form.getAttribute("action") + (said.length ? `?${new URLSearchParams(said)}` : ""));
}

// What was just said is read first, and not said again when the page is loaded again.
function forgetSaid() {
  const url = new URL(location.href);
  if (!url.searchParams.has("said")) return;
  const said = document.querySelector(".said");
  url.searchParams.delete("said");
  url.searchParams.delete("n");
  history.replaceState(null, "", url);
  if (!said) return;
  document.querySelector("main").before(said);
  said.tabIndex = -1;
  said.focus();  // so that it is read out, and the next Tab goes on from there
}

// Where the way to other pages is wider than the screen, it shows where one is.
function showPlace() {
  document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

enliven(document);
showPlace();
document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.addEventListener("change", onChange);
document.addEventListener("submit", onSubmit);
takeFragment();
forgetSaid();
if (main) startLive();
