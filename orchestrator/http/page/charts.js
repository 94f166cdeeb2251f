// One small chart: its name, the value now in figures and words, and a line over the last two minutes with the
// target and the marked baseline.
import { make, setText } from "./dialogs.js";
import { History } from "./figures.js";

const kSvg = "http://www.w3.org/2000/svg";
const kWidth = 240;
const kHeight = 60;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(kSvg, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const line = (name) => svg("path", { class: name, "vector-effect": "non-scaling-stroke", d: "" });

function niceTop(value) {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= value);
}

export class Chart {
  constructor(row) {
    this.row = row;
    this.value = make("strong", { class: "value" }, "–");
    this.grade = make("span", { class: "grade" });
    this.note = make("span", { class: "note small" });
    this.scale = make("span", { class: "scale small", "aria-hidden": "true" });
    this.area = svg("path", { class: "area", d: "" });
    this.curve = line("curve");
    this.target = line("target");
    this.baseline = line("baseline");
    this.drawing = svg("svg", {
      viewBox: `0 0 ${kWidth} ${kHeight}`, preserveAspectRatio: "none", role: "img", "aria-label": row.title,
    }, this.area, this.target, this.baseline, this.curve);
    this.element = make("figure", { class: "chart", "data-chart": row.id },
      make("figcaption", {}, make("span", {}, row.title), this.value),
      make("div", { class: "drawing" }, this.drawing, this.scale),
      make("p", { class: "under" }, this.note, this.grade));
  }

  // `baseline`: a value, or null.
  draw(points, note, baseline, now) {
    const { row } = this;
    const values = points.map((point) => point.value).filter((value) => value !== null);
    const most = Math.max(0, row.warn ?? 0, baseline ?? 0, ...values);
    const top = row.top ?? niceTop(most);
    const x = (time) => (kWidth * (1 - (now - time) / History.kSpanMs)).toFixed(1);
    const y = (value) => (kHeight - 2 - (kHeight - 5) * Math.min(value / top, 1)).toFixed(1);
    this.trace(points, x, y);
    const across = (value) => (value === null || value === undefined ? "" : `M0 ${y(value)}H${kWidth}`);
    this.target.setAttribute("d", across(row.warn));
    this.baseline.setAttribute("d", across(baseline));

    const last = points.at(-1)?.value ?? null;
    const shown = last === null ? "–" : row.format(last);
    setText(this.value, shown);
    setText(this.note, last === null ? "nothing measured lately" : note);
    setText(this.scale, row.format(top));
    const grade = this.gradeOf(last);
    this.element.dataset.grade = grade ?? "";
    setText(this.grade, grade === null ? ""
      : `${grade === "bad" ? "far " : ""}${row.above ? "above" : "below"} ${row.format(row.warn)}`);
    const range = values.length > 0 ? `, between ${row.format(Math.min(...values))} and ${row.format(Math.max(...values))}` : "";
    const target = row.warn === undefined ? "" : `, target at ${row.above ? "most" : "least"} ${row.format(row.warn)}`;
    const marked = baseline === null ? "" : `, baseline ${row.format(baseline)}`;
    this.drawing.setAttribute("aria-label",
      `${row.title}: ${shown} now${range} in the last two minutes${target}${marked}`);
  }

  gradeOf(value) {
    const { bad, warn, above } = this.row;
    const beyond = (bound) => (above ? value > bound : value < bound);
    if (value === null || warn === undefined || !beyond(warn)) return null;
    return beyond(bad) ? "bad" : "warn";
  }

  // The line, with a gap where there was no value.
  trace(points, x, y) {
    let curve = "";
    let area = "";
    let begun = null;
    let before = null;
    const close = () => {
      if (begun !== null) area += `L${x(before.time)} ${kHeight}L${x(begun.time)} ${kHeight}Z`;
      begun = null;
    };
    for (const point of points) {
      if (point.value === null) {
        close();
        continue;
      }
      const place = `${x(point.time)} ${y(point.value)}`;
      curve += `${begun === null ? "M" : "L"}${place}`;
      area += `${begun === null ? "M" : "L"}${place}`;
      begun ??= point;
      before = point;
    }
    close();
    this.curve.setAttribute("d", curve);
    this.area.setAttribute("d", area);
  }
}
