// The KV cache as a map: a cell for a page, or for as many as it takes, in the colour of what most of them are.
import { html, useEffect, useRef } from "../lib/html.js";
import { count } from "../lib/numbers.js";

// As `PAGE_STATES` of the server: the place is the digit of a cell.
const STATES = [
  { name: "blank", title: "free" },
  { name: "cached", title: "free, with a prefix to be found" },
  { name: "held", title: "held by one request" },
  { name: "shared", title: "shared by several" },
];
const CELL = 9; // CSS pixels
const GAP = 2;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--page-${name}`).trim();

function draw(canvas, cells) {
  if (!canvas) return; // Another view is shown by now.
  const width = canvas.parentElement.clientWidth;
  const columns = Math.max(1, Math.floor((width + GAP) / (CELL + GAP)));
  const height = Math.ceil(cells.length / columns) * (CELL + GAP) - GAP;
  const scale = globalThis.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const colours = STATES.map(({ name }) => colour(name));
  [...cells].forEach((state, index) => {
    context.fillStyle = colours[state];
    context.fillRect((index % columns) * (CELL + GAP), Math.floor(index / columns) * (CELL + GAP), CELL, CELL);
  });
}

export function Pages({ maps }) {
  return html`
    <section class="card wide" aria-label="Pages of the KV cache">
      <header>
        <h2>Pages of the KV cache</h2>
        <ul class="keys">
          ${STATES.map(({ name, title }) => {
            const all = maps.reduce((sum, { counts }) => sum + counts[name], 0);
            return html`<li><i class=${`mark page-${name}`}></i>${title} <b>${count(all)}</b></li>`;
          })}
        </ul>
      </header>
      ${maps.map((map) => html`<${Map} map=${map} />`)}
    </section>
  `;
}

function Map({ map }) {
  const canvas = useRef(null);
  const cells = useRef("");
  cells.current = map.cells;
  useEffect(() => draw(canvas.current, map.cells), [map.cells]);
  useEffect(() => {
    const again = () => draw(canvas.current, cells.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const watch = new ResizeObserver(again);
    watch.observe(canvas.current.parentElement);
    dark.addEventListener("change", again);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", again);
    };
  }, []);
  const told = STATES.map(({ name, title }) => `${count(map.counts[name])} ${title}`).join(", ");
  return html`
    <div class="page-map"><canvas ref=${canvas} role="img" aria-label=${told}></canvas></div>
    ${map.pages_per_cell > 1 && html`<p class="help">A cell stands for ${count(map.pages_per_cell)} pages.</p>`}
  `;
}
