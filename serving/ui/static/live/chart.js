// Curves over the last minutes, drawn by uPlot in the colours of the page.
import { html, useEffect, useRef } from "../lib/html.js";
import { WINDOW } from "./history.js";

const HEIGHT = 170;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function options(width, series, form) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: false, range: [-WINDOW, 0] },
      y: { range: (_, low, high) => [0, form.most ?? Math.max(high * 1.1, form.least ?? 1)] },
    },
    axes: [
      { ...axis, size: 24, values: (_, marks) => marks.map((mark) => (mark ? `${-mark} s` : "now")), space: 70 },
      { ...axis, size: 46, values: (_, marks) => marks.map(form.show) },
    ],
    series: [
      {},
      ...series.map(({ name }, index) => ({
        label: name,
        stroke: colour(`--series-${index}`),
        fill: index ? undefined : colour("--series-fill"),
        width: 2,
        points: { show: false },
      })),
    ],
  };
}

// `series` are {name, values, now}; `form` says how the values are shown, and the most that they can be.
export function Chart({ title, times, series, form, wide = false }) {
  const box = useRef(null);
  const plot = useRef(null);
  const data = [times, ...series.map(({ values }) => values)];
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const element = box.current;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const draw = () => {
      plot.current?.destroy();
      plot.current = new globalThis.uPlot(options(element.clientWidth, series, form), latest.current, element);
    };
    draw();
    const watch = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    watch.observe(box.current);
    dark.addEventListener("change", draw);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", draw);
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData(data), [times]);

  const said = series.map(({ name, now }) => `${name} ${now}`).join(", ");
  return html`
    <section class=${`card ${wide ? "wide" : ""}`} aria-label=${title}>
      <header>
        <h2>${title}</h2>
        <ul class="keys">
          ${series.map(({ name, now }, index) => html`<li><i class=${`mark s${index}`}></i>${name} <b>${now}</b></li>`)}
        </ul>
      </header>
      <div class="plot" ref=${box} role="img" aria-label=${`${title} over the last two minutes: ${said} now`}></div>
    </section>
  `;
}
