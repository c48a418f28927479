"use strict";
/* Draws the page from one object of figures: of a report it stands in the page, of a run that goes on it is fetched again and
   again. All text goes into the page as text, whatever it is. */

const SVG = "http://www.w3.org/2000/svg";
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const few = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const missing = value => value === null || value === undefined;
const shown = value => missing(value) ? "–" : Number.isInteger(value) ? whole.format(value) : number.format(value);
const percent = share => missing(share) ? "–" : `${(100 * share).toFixed(1)}\u00a0%`;

function element(name, attributes = {}, ...children) {
  const made = ["svg", "path", "line", "text", "circle", "rect", "g", "clipPath", "title"].includes(name)
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter(child => !missing(child)));
  return made;
}
const flowing = text => text.replaceAll(" %", "\u00a0%");
const named = text => element("bdi", {}, String(text));
const bar = (share, color) => element("div", { class: "track" },
  element("i", { style: `background: var(${color}); width: ${100 * Math.min(Math.max(share, 0), 1)}%` }));

/* ---- charts ---- */

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(digit => digit * power).find(each => each >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9) + 0; i * step <= high + 1e-9 * step; i++) found.push(i * step + 0);
  return found;
}

/* A chart of lines over one axis. Each line is {name, color, points: [[x, y]], dashed}, marks are [x, text], and bars of a strip
   below, if there is one, [x from, x to, share]. It is drawn again where its place has another width. */
function chart(about, lines, { format = shown, along = few.format, unit = "", marks = [], strip = null, range = null,
                               dots = null, fromZero = false, height = 230 } = {}) {
  lines = lines.map(line => ({ ...line, points: line.points.filter(([, y]) => !missing(y)) })).filter(line => line.points.length);
  if (!lines.length) return null;
  const xs = lines.flatMap(line => line.points.map(([x]) => x));
  let [left, right] = range ? range[0] : [Math.min(...xs), Math.max(...xs)];
  if (left === right) right = left + 1;
  /* The first rows, at which scores jump, do not stretch the axis: lines that leave it are cut. */
  const settled = lines.flatMap(line => line.points.filter(([x]) => x >= left + .04 * (right - left)).map(([, y]) => y));
  const ys = settled.length ? settled : lines.flatMap(line => line.points.map(([, y]) => y));
  let [low, high] = range ? range[1] : [Math.min(...ys), Math.max(...ys)];
  if (fromZero) low = Math.min(low, 0);
  if (low === high) { low -= Math.abs(low) * .05 || 1; high += Math.abs(high) * .05 || 1; }
  else if (!range) { const room = .06 * (high - low); low -= low >= 0 && low < room ? low : room; high += room; }
  if (format === percent) { low = Math.max(low, 0); high = Math.min(high, 1); }
  const legend = element("div", { class: "legend" });
  const place = element("div"), box = element("div", {}, legend, place);
  const say = x => legend.replaceChildren(...lines.filter(line => line.name).map(line => {
    const [, y] = missing(x) ? line.points.at(-1) : line.points.findLast(([each]) => each <= x) ?? line.points[0];
    return element("span", {}, element("i", { class: line.dashed ? "dashed" : "", style: `border-color: var(${line.color})` }),
      `${line.name} ${format(y)}`);
  }), missing(x) ? "" : element("span", { class: "axis" }, `${unit} ${along(x)}`));
  const id = `clip${++chart.count}`;
  const draw = width => {
    const under = strip ? 34 : 0, bottom = height - 26 - under, top = marks.length ? 20 : 8;
    const yticks = ticks(low, high, 5), start = Math.max(...yticks.map(y => format(y).length)) * 7 + 12, end = width - 8;
    const across = x => start + (end - start) * (x - left) / (right - left);
    const down = y => bottom - (bottom - top) * (y - low) / (high - low);
    const svg = element("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about });
    svg.append(element("clipPath", { id },
      element("rect", { x: start, y: top, width: Math.max(end - start, 1), height: bottom - top })));
    for (const y of yticks) svg.append(element("line", { x1: start, x2: end, y1: down(y), y2: down(y), stroke: "var(--line)" }),
      element("text", { x: start - 8, y: down(y) + 4, "text-anchor": "end" }, format(y)));
    for (const x of ticks(left, right, Math.max(2, Math.floor((end - start) / 90)))) {
      const edge = across(x) > end - 24 ? "end" : "middle";
      svg.append(element("line", { x1: across(x), x2: across(x), y1: bottom, y2: bottom + 4, stroke: "var(--guess)" }),
        element("text", { x: edge === "end" ? end : across(x), y: bottom + 18, "text-anchor": edge }, along(x)));
    }
    if (unit) svg.append(element("text", { x: start - 8, y: bottom + 18, "text-anchor": "end" }, unit));
    let free = -Infinity;
    for (const [x, text] of marks) {
      svg.append(element("line", { x1: across(x), x2: across(x), y1: top, y2: bottom, stroke: "var(--bad)", "stroke-dasharray": "2 3" }));
      if (across(x) < free) continue;
      const late = across(x) > end - 7 * text.length;
      svg.append(element("text", { x: across(x), y: top - 7, "text-anchor": late ? "end" : "start", style: "fill: var(--bad)" }, text));
      free = across(x) + 7 * text.length + 6;
    }
    for (const line of lines) svg.append(element("path", { "clip-path": `url(#${id})`, fill: "none", stroke: `var(${line.color})`,
      "stroke-width": line.thin ? 1.4 : 2.2, "stroke-dasharray": line.dashed ? "5 4" : "none", "stroke-linejoin": "round",
      d: line.points.map(([x, y], i) => `${i ? "L" : "M"}${across(x).toFixed(1)} ${down(y).toFixed(1)}`).join("") }));
    for (const [x, y, size, text] of dots ?? []) svg.append(element("circle", { cx: across(x), cy: down(y), r: 3 + 9 * Math.sqrt(size),
      fill: "var(--model)", "fill-opacity": .75 }, element("title", {}, text)));
    if (strip) {
      const most = Math.max(...strip.map(([, , share]) => share), 1e-9), floor = height - 2;
      svg.append(element("text", { x: start - 8, y: floor - 4, "text-anchor": "end" }, "refused"),
        element("line", { x1: start, x2: end, y1: floor, y2: floor, stroke: "var(--line)" }));
      for (const [from, to, share] of strip) if (share) svg.append(element("rect", { x: across(from), y: floor - 22 * share / most,
        width: Math.max(across(to) - across(from), 1.5), height: 22 * share / most, fill: "var(--bad)" },
        element("title", {}, `${percent(share)} of the rows from ${whole.format(from)} to ${whole.format(to)}`)));
    }
    const cursor = element("line", { y1: top, y2: bottom, stroke: "var(--soft)", visibility: "hidden" });
    svg.append(cursor);
    svg.addEventListener("pointermove", event => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      const x = Math.min(Math.max(left + (right - left) * (at - start) / (end - start), left), right);
      cursor.setAttribute("x1", across(x)); cursor.setAttribute("x2", across(x)); cursor.setAttribute("visibility", "visible");
      say(x);
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); say(); });
    place.replaceChildren(svg);
  };
  say();
  new ResizeObserver(([entry]) => entry.contentRect.width && draw(entry.contentRect.width)).observe(place);
  return box;
}
chart.count = 0;

/* ---- parts of the page ---- */

function hero({ score, tiles, scores }) {
  const figures = element("div", { class: "tiles" }, ...tiles.map(([name, text]) =>
    element("div", {}, element("b", {}, named(text)), element("small", {}, name))));
  if (!score) return element("section", {}, figures);
  const words = element("div", {}, score.big ? element("span", { class: "big" }, score.big) : null, element("p", {}, element("b", {}, score.what)),
    element("p", { class: "verdict" }, flowing(score.sentence)));
  const values = [["this model", score.value, "--model"], ...score.guesses.map(([what, value]) => [what, value, "--guess"])]
    .filter(([, value]) => !missing(value));
  const most = score.percent ? 1 : Math.max(...values.map(([, value]) => Math.abs(value)));
  const bars = element("div", { class: "bars" }, ...values.flatMap(([what, value, color]) =>
    [element("div", {}, named(what)), bar(Math.abs(value) / (most || 1), color),
      element("div", { class: "number" }, score.percent ? percent(value) : shown(value))]));
  const about = score.lower ? "Smaller is better." : "";
  const further = ([name, value, guesses]) => element("p", { class: "about" }, `${name} `, element("b", {}, shown(value)),
    guesses ? element("span", {}, " (", named(guesses), ")") : null);
  return element("section", { class: "hero" }, words,
    element("div", {}, values.length > 1 ? bars : null, element("p", { class: "about" }, about), ...(scores ?? []).map(further)), figures);
}

const section = (kind, title, about, ...parts) =>
  element("section", { class: kind }, element("h2", {}, title), element("p", { class: "about" }, flowing(about)), ...parts);

function curve({ curve: { metric, window, points, sentence } }) {
  const rows = i => points.map(point => [point[0], point[i]]), isShare = metric === "Accuracy";
  const marks = points.filter((point, i) => point[5] > (i ? points[i - 1][5] ?? 0 : 0)).map(point => [point[0], "drift"]);
  const any = points.some(point => point[4]);
  const strip = any ? points.map((point, i) => {
    const [from, , , , before] = i ? points[i - 1] : [0, 0, 0, 0, 0];
    return [from, point[0], (point[4] - before) / (point[0] - from)];
  }) : null;
  const lines = [{ name: "guessing", color: "--guess", points: rows(3), dashed: true },
    { name: `last ${whole.format(window)} rows`, color: "--late", points: rows(2), thin: true },
    { name: "guessing these", color: "--late", points: rows(6), thin: true, dashed: true },
    { name: "all rows so far", color: "--model", points: rows(1) }];
  return section("wide", `${metric} while it learned`, sentence, chart(`${metric} over the rows`, lines,
    { format: isShare ? percent : shown, unit: "rows", marks, strip, height: strip ? 340 : 310 }));
}

function important({ importance: { sentence, columns, rest } }) {
  const most = Math.max(...columns.map(([, size]) => size)) || 1;
  const rows = columns.flatMap(([name, size, text]) =>
    [element("div", {}, named(name)), bar(size / most, "--model"), element("div", { class: "number" }, text)]);
  return section("slim", "What matters to it", sentence, element("div", { class: "bars" }, ...rows),
    rest ? element("p", { class: "about" }, rest) : null);
}

function confusion({ confusion: { sentence, table: [head, ...rows] } }) {
  const cells = rows.map(([label, ...counts], i) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    return element("tr", {}, element("th", {}, named(label)), ...counts.map((count, j) => {
      const share = total ? count / total : 0;
      const color = `color-mix(in srgb, var(${i === j ? "--model" : "--bad"}) ${Math.round(count ? 8 + 52 * share : 0)}%, transparent)`;
      return element("td", count ? { style: `background: ${color}` } : { class: "none" }, shown(count),
        count ? element("small", {}, `${Math.round(100 * share)}\u00a0%`) : null);
    }));
  });
  const kind = rows.length > 4 ? "" : "half";
  return section(kind, "Which labels it confuses", `${sentence} Shares are of the rows of the line.`, element("div", { class: "scrolls" }, element("table", { class: "matrix" },
    element("thead", {}, element("tr", {}, ...head.map(name => element("th", {}, named(name))))), element("tbody", {}, ...cells))));
}

function table(title, { sentence, table: [head, ...rows] }, format = shown, kind = "half") {
  const cell = (value, i) => missing(value) ? "–" : typeof value !== "number" ? named(value) : format(value, i);
  const align = kind === "half" ? {} : { class: "text" };
  return section(kind, title, sentence, element("div", { class: "scrolls" }, element("table", {},
    element("thead", {}, element("tr", {}, ...head.map(name => element("th", align, named(name))))),
    element("tbody", {}, ...rows.map(([name, ...values]) =>
      element("tr", {}, element("td", {}, named(name)), ...values.map((value, i) => element("td", align, cell(value, i)))))))));
}

function calibration({ calibration: { sentence, bins } }) {
  const most = Math.max(...bins.map(([, , rows]) => rows));
  const dots = bins.map(([expected, observed, rows]) =>
    [expected, observed, rows / most, `expected ${percent(expected)}, observed ${percent(observed)}, ${whole.format(rows)} rows`]);
  /* The diagonal is drawn without a name: the legend tells what was expected of the bin that it shows. */
  const lines = [{ name: "observed", color: "--model", points: bins }, { name: "expected", color: "--guess", dashed: true,
    points: bins.map(([expected]) => [expected, expected]) }, { color: "--guess", dashed: true, points: [[0, 0], [1, 1]] }];
  return section("half", "Can its probabilities be believed?", sentence, chart("Expected and observed shares", lines,
    { format: share => `${Math.round(100 * share)} %`, along: share => `${Math.round(100 * share)} %`, range: [[0, 1], [0, 1]], dots, height: 280 }));
}

function explained({ explained: { sentence, rows } }) {
  const cards = rows.map(({ title, right, decision, parts }) => {
    const most = Math.max(...parts.map(([, , size]) => Math.abs(size))) || 1;
    const lines = parts.flatMap(([name, value, size]) => {
      const width = 50 * Math.abs(size) / most, from = size < 0 ? 50 - width : 50;
      return [element("div", {}, named(name), missing(value) ? "" : element("span", { class: "axis" }, " = ", named(value))),
        element("div", { class: "track" }, element("i", { style: `background: var(${size < 0 ? "--bad" : "--model"}); left: ${from}%; width: ${width}%` })),
        element("div", { class: "number" }, `${size > 0 ? "+" : ""}${shown(size)}`)];
    });
    const verdict = missing(right) ? null : element("span", { class: right ? "right" : "wrong" }, right ? " ✓ right" : " ✗ wrong");
    return element("div", {}, element("b", {}, named(title)), verdict, element("p", { class: "about" }, decision),
      element("div", { class: "parts" }, ...lines));
  });
  return section("", "Why it decides so", sentence, element("div", { class: "cards" }, ...cards));
}

function columns({ columns: { sentence, rows, rest } }) {
  const cells = [["column", row => element("td", {}, named(row.name))],
    ["read as", row => element("td", { class: "text" }, element("span", { class: "kind" }, row.kind))],
    ["values", row => element("td", { class: "text" }, named(row.values))],
    ["missing", row => element("td", { class: "text" }, row.missing ? percent(row.missing) : "")],
    ["note", row => element("td", { class: "text" }, named(row.note))]]
    .filter(([name], i) => i < 2 || rows.some(row => row[name]));
  return section("", "What it learned from", sentence, element("div", { class: "scrolls" }, element("table", {},
    element("thead", {}, element("tr", {}, ...cells.map(([name]) => element("th", { class: "text" }, name)))),
    element("tbody", {}, ...rows.map(row => element("tr", {}, ...cells.map(([, cell]) => cell(row))))))),
    rest ? element("p", { class: "about" }, rest) : null);
}

function facts({ facts: rows }) {
  return section("half", "Size and speed", "", element("table", {}, element("tbody", {}, ...rows.map(([name, text]) =>
    element("tr", {}, element("td", {}, name), element("td", {}, named(text)))))));
}

function lately({ points, metric, curve }) {
  const rates = points.map((point, i) => {
    const before = points[Math.max(i - 1, 0)];
    return [point.seconds, point.seconds > before.seconds ? (point.rows - before.rows) / (point.seconds - before.seconds) : null];
  }).slice(1, -1);
  const of = name => points.map(point => [point.seconds, point[name]]);
  const along = seconds => seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
  const small = (title, name, line) => {
    const drawn = chart(title, [{ name, color: "--model", points: line }], { along, fromZero: true, height: 150 });
    return drawn && element("div", {}, element("b", {}, title), drawn);
  };
  const lines = [["last rows", "windowed", "--late"], ["all rows", "metric", "--model"]].map(([name, key, color]) => ({ name, color, points: of(key) }));
  const score = curve ? null : chart(metric ?? "", lines, { along, height: 150 });
  return section("", "This run", "Since it began.", element("div", { class: "cards" },
    ...[score && element("div", {}, element("b", {}, metric), score), small("Rows a second", "now", rates), small("Unread rows", "lag", of("lag")), small("Refused rows", "so far", of("refused")),
      small("Support vectors", "now", of("support_vectors"))].filter(Boolean)));
}

const PARTS = [
  ["tiles", hero, ["score", "tiles", "scores"]], ["curve", curve, ["curve"]], ["importance", important, ["importance"]],
  ["confusion", confusion, ["confusion"]], ["labels", state => table("Label by label", state.labels, (value, i) => i < 3 ? percent(value) : shown(value)), ["labels"]],
  ["thresholds", state => table("Where to put the threshold", state.thresholds), ["thresholds"]],
  ["calibration", calibration, ["calibration"]], ["facts", facts, ["facts"]],
  ["points", lately, ["points", "curve"]],
  ["words", state => table("Which words matter", state.words, shown, ""), ["words"]],
  ["keys", state => table("Which keys it predicts worst", state.keys), ["keys"]],
  ["explained", explained, ["explained"]], ["columns", columns, ["columns"]],
  ["experts", state => table("Which parts it listens to", state.experts), ["experts"]],
  ["notes", state => section("half", "Good to know", "", ...state.notes.map(each => element("p", { class: "about" }, each))), ["notes"]],
];
const drawn = {};

/* Draws the parts of which something has changed, so that what somebody reads or points at stays. */
function show(state) {
  for (const id of ["title", "state", "foot"]) document.getElementById(id).replaceChildren(state[id] ? named(state[id]) : "");
  document.title = `${state.state ? `${state.state} · ` : ""}${state.title} · streamsvm`;
  document.getElementById("lead").replaceChildren(...state.lead.flatMap((each, i) => [i ? " · " : "", named(each)]));
  const main = document.querySelector("main");
  PARTS.forEach(([name, draw, of], place) => {
    const wanted = missing(state[name]) || (Array.isArray(state[name]) && !state[name].length) ? "" : JSON.stringify(of.map(each => state[each]));
    if (drawn[name]?.wanted === wanted) return;
    const made = wanted ? draw(state) : null;
    if (drawn[name]?.made) made ? drawn[name].made.replaceWith(made) : drawn[name].made.remove();
    else if (made) {
      const next = PARTS.slice(place + 1).map(([each]) => drawn[each]?.made).find(Boolean);
      main.insertBefore(made, next ?? null);
    }
    drawn[name] = { wanted, made };
  });
}

async function refresh() {
  try {
    show(await (await fetch("state.json")).json());
    document.getElementById("gone").textContent = "";
  } catch {
    document.getElementById("gone").textContent = "no answer: the process has ended, or is not reached";
  }
  setTimeout(refresh, 1000);
}

const given = document.getElementById("facts").textContent.trim();
if (given) show(JSON.parse(given));
else refresh();
