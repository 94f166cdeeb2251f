// A model's text as elements: the Markdown that models write, no more. Text becomes text nodes only, never
// HTML, so whatever a model says is shown and nothing of it is run. Each look forward for the end of a mark
// is remembered when it fails, so that hostile text takes time in proportion to its length.
import { make } from "./dialogs.js";

const kDeepest = 8;  // quotes in lists in quotes ...

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const kHeading = /^ {0,3}(#{1,6})\s(.*)$/s;
const kRule = /^ {0,3}(?:-\s*){3,}$|^ {0,3}(?:\*\s*){3,}$|^ {0,3}(?:_\s*){3,}$/;
const kItem = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/s;
const kTableRule = /^:?-+:?$/;  // in each cell

// A fragment of block elements.
export function render(text) {
  const fragment = document.createDocumentFragment();
  blocks(text.replace(/\t/g, "    ").split("\n"), fragment, 0);
  return fragment;
}

function blocks(lines, parent, depth) {
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    if (line.trim() === "") ++at;
    else if (kFence.test(line)) at = fence(lines, at, parent);
    else if (kHeading.test(line)) at = heading(lines, at, parent);
    else if (kRule.test(line)) at = rule(at, parent);
    else if (depth < kDeepest && /^ {0,3}>/.test(line)) at = quote(lines, at, parent, depth);
    else if (depth < kDeepest && kItem.test(line)) at = list(lines, at, parent, depth);
    else if (isTable(lines, at)) at = table(lines, at, parent);
    else at = paragraph(lines, at, parent, depth);
  }
}

function fence(lines, at, parent) {
  const [, mark, language] = kFence.exec(lines[at]);
  const end = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`);
  const begin = ++at;
  while (at < lines.length && !end.test(lines[at])) ++at;
  const code = lines.slice(begin, at).join("\n");
  const copy = make("button", { type: "button", class: "quiet copy", onclick: () => copyText(code, copy) }, "Copy");
  parent.append(make("figure", { class: "code" },
    make("figcaption", {}, make("span", {}, language || "text"), copy),
    make("pre", { tabindex: "0" }, make("code", {}, code))));
  return at + 1;
}

export async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";  // a page that came by plain HTTP from another machine
  }
  setTimeout(() => (button.textContent = before), 1500);
}

function heading(lines, at, parent) {
  const [, marks, text] = kHeading.exec(lines[at]);
  let end = text.trimEnd().length;
  while (text[end - 1] === '#')
    --end;
  // The page's own headings are the first two levels.
  parent.append(inline(text.slice(0, end).trim(), make(`h${Math.min(marks.length + 2, 6)}`)));
  return at + 1;
}

function rule(at, parent) {
  parent.append(make("hr"));
  return at + 1;
}

function quote(lines, at, parent, depth) {
  const inner = [];
  for (; at < lines.length && /^ {0,3}>/.test(lines[at]); ++at) inner.push(lines[at].replace(/^ {0,3}> ?/, ""));
  const element = make("blockquote");
  blocks(inner, element, depth + 1);
  parent.append(element);
  return at;
}

function list(lines, at, parent, depth) {
  const [, indent, mark] = kItem.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const element = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark, 10) } : {});
  while (at < lines.length) {
    const item = kItem.exec(lines[at]);
    if (!item || item[1].length > indent.length + 1 || /\d/.test(item[2]) !== ordered) break;
    if (item[1].length < indent.length) break;
    const width = lines[at].length - item[3].length;
    const inner = [item[3]];
    for (++at; at < lines.length && belongs(lines, at, indent.length); ++at)
      inner.push(lines[at].slice(Math.min(width, lines[at].search(/\S|$/))));
    const entry = make("li");
    const tight = !inner.some((line, i) => line.trim() === "" && i < inner.length - 1);
    blocks(inner, entry, depth + 1);
    const only = entry.firstElementChild;
    if (tight && only?.tagName === 'P') unwrap(only);
    element.append(entry);
  }
  parent.append(element);
  return at;
}

// Puts what an element holds in its place, one by one: a call takes only so many arguments.
function unwrap(element) {
  while (element.firstChild)
    element.before(element.firstChild);
  element.remove();
}

// Whether a line goes on with the list's item before it.
function belongs(lines, at, indent) {
  const line = lines[at];
  if (line.trim() === "") return at + 1 < lines.length && /^ /.test(lines[at + 1]) && lines[at + 1].search(/\S/) > indent;
  const item = kItem.exec(line);
  if (item) return item[1].length > indent + 1;
  return line.search(/\S/) > indent || (lines[at - 1].trim() !== "" && !kFence.test(line) && !kHeading.test(line));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function isTable(lines, at) {
  return lines[at].includes('|') && at + 1 < lines.length && lines[at + 1].includes('-') &&
      cells(lines[at + 1]).every((cell) => kTableRule.test(cell));
}

function table(lines, at, parent) {
  const row = (line, tag) => {
    const element = make('tr');
    for (const cell of cells(line))
      element.append(inline(cell, make(tag)));
    return element;
  };
  const head = make("thead", {}, row(lines[at], "th"));
  const body = make("tbody");
  for (at += 2; at < lines.length && lines[at].includes("|"); ++at) body.append(row(lines[at], "td"));
  parent.append(make("div", { class: "table", tabindex: "0" }, make("table", {}, head, body)));
  return at;
}

function paragraph(lines, at, parent, depth) {
  const begin = at++;
  const ends = (line) => line.trim() === "" || kFence.test(line) || kHeading.test(line) || kRule.test(line) ||
    (depth < kDeepest && (/^ {0,3}>/.test(line) || /^ {0,3}(?:[-*+]|1[.)])\s+\S/.test(line)));
  while (at < lines.length && !ends(lines[at])) ++at;
  parent.append(inline(lines.slice(begin, at).join("\n"), make("p")));
  return at;
}

// ---- within a line ----

const kMarks = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

function inline(text, parent, depth = 0) {
  const missing = new Set();  // marks that have no end after here
  let plain = "";
  const flush = () => {
    if (plain) parent.append(plain);
    plain = "";
  };
  for (let at = 0; at < text.length;) {
    const found = "\\`[*_~h\n".includes(text[at]) ? special(text, at, missing, depth) : null;
    if (!found) {
      plain += text[at++];
      continue;
    }
    if (typeof found.node === "string") {
      plain += found.node;
    } else {
      flush();
      parent.append(found.node);
    }
    at = found.end;
  }
  flush();
  return parent;
}

// What begins at `at`, and where it ends; null: nothing but text.
function special(text, at, missing, depth) {
  const c = text[at];
  if (c === "\n") return { node: make("br"), end: at + 1 };
  if (c === "\\") return /[\\`*_{}[\]()#+.!~|>-]/.test(text[at + 1] ?? "") ? { node: text[at + 1], end: at + 2 } : null;
  if (c === "`") return codeSpan(text, at, missing);
  if (c === "h") return bareLink(text, at);
  if (depth >= kDeepest) return null;
  if (c === "[") return link(text, at, depth);
  for (const [mark, tag] of kMarks) {
    if (text.startsWith(mark, at)) return emphasis(text, at, mark, tag, missing, depth);
  }
  return null;
}

function codeSpan(text, at, missing) {
  const mark = /^`+/.exec(text.slice(at, at + 64))[0];
  const whole = { node: mark, end: at + mark.length };
  if (missing.has(mark)) return whole;
  const end = text.indexOf(mark, at + mark.length);
  if (end < 0) {
    missing.add(mark);
    return whole;
  }
  return { node: make("code", {}, text.slice(at + mark.length, end)), end: end + mark.length };
}

function emphasis(text, at, mark, tag, missing, depth) {
  const begin = at + mark.length;
  const word = (c) => /[\p{L}\p{N}]/u.test(c ?? "");
  const opens = /\S/.test(text[begin] ?? "") && !(mark[0] === "_" && word(text[at - 1]));
  if (!opens || missing.has(mark)) return { node: mark, end: begin };
  let end = text.indexOf(mark, begin + 1);
  // "*" is not half of a "**".
  for (let tries = 0; end >= 0 && tries < 16; ++tries) {
    const half = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    if (!half && /\S/.test(text[end - 1]) && !(mark[0] === "_" && word(text[end + mark.length]))) break;
    end = text.indexOf(mark, end + (half && text[end + 1] === mark ? 2 : 1));
  }
  if (end < 0) {
    missing.add(mark);
    return { node: mark, end: begin };
  }
  return { node: inline(text.slice(begin, end), make(tag), depth + 1), end: end + mark.length };
}

// Only to the web: a model's link runs nothing. It opens elsewhere, and tells nobody where it stood.
function anchor(address, content) {
  const element = make("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
  element.append(content);
  return element;
}

function link(text, at, depth) {
  const shape = /^\[([^\][\n]{1,300})\]\(\s*(https?:\/\/[^\s()<>"]{1,2000})(?:\s+"[^"\n]{0,200}")?\s*\)/;
  const match = shape.exec(text.slice(at, at + 2600));
  if (!match) return null;
  return { node: anchor(match[2], inline(match[1], make("span"), depth + 1)), end: at + match[0].length };
}

function bareLink(text, at) {
  if (!text.startsWith("http://", at) && !text.startsWith("https://", at)) return null;
  const address = /^https?:\/\/[^\s<>"'`()]{1,2000}/.exec(text.slice(at, at + 2010))?.[0].replace(/[.,;:!?*_~]+$/, "");
  return address && address.length > 8 ? { node: anchor(address, address), end: at + address.length } : null;
}
