// The last steps of each engine: what the host does above, what the device does below, in the colour of the shape.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { count, counted, duration } from "../lib/numbers.js";
import { byShape, deviceSeconds, hostSeconds, span } from "./steps.js";

const LANE = 22; // CSS pixels
const GAP = 3;
const BETWEEN = 12;
const AXIS = 20;
const SHAPES = 5; // colours

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Timeline({ steps }) {
  const [held, setHeld] = useState(null);
  const shown = held ?? steps;
  const found = span(shown);
  const shapes = byShape(shown);
  const colours = Object.fromEntries(shapes.map(({ shape }, index) => [shape, index % SHAPES]));
  return html`
    <section class="card wide" aria-label="Steps">
      <header>
        <h2>Steps</h2>
        <ul class="keys">
          <li><i class="mark host"></i>host</li>
          ${shapes.map(({ shape }) => html`<li><i class=${`mark shape${colours[shape]}`}></i>${count(shape)}-token shape</li>`)}
          <li>
            <button type="button" class="plain" aria-pressed=${String(held !== null)} disabled=${!found} onClick=${() => setHeld(held ? null : steps)}>
              ${held ? "Go on" : "Hold"}
            </button>
          </li>
        </ul>
      </header>
      ${found
        ? html`<${Picture} found=${found} colours=${colours} /><${Shapes} shapes=${shapes} />`
        : html`<p class="quiet none">No step in the last minute.</p>`}
      <p class="help">
        Above, the host: it schedules and sends a step, and later makes its outputs. Below, the device: from when it is
        free for the step until the tokens are back. Gaps below are time in which the device waits for the host.
      </p>
    </section>
  `;
}

function Picture({ found, colours }) {
  const canvas = useRef(null);
  const latest = useRef(null);
  const [under, setUnder] = useState(null);
  latest.current = { found, colours };
  useEffect(() => draw(canvas.current, found, colours), [found.end, found.begin]);
  useEffect(() => {
    const again = () => draw(canvas.current, latest.current.found, latest.current.colours);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const watch = new ResizeObserver(again);
    watch.observe(canvas.current.parentElement);
    dark.addEventListener("change", again);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", again);
    };
  }, []);

  function point({ offsetX, offsetY }) {
    const time = found.begin + (offsetX / canvas.current.clientWidth) * (found.end - found.begin);
    const engine = found.engines[Math.floor(offsetY / (2 * LANE + GAP + BETWEEN))];
    setUnder(found.shown.findLast((step) => step.engine === engine && step.at <= time && time <= step.at + step.ended) ?? null);
  }

  const said = `${counted(found.shown.length, "step")} in ${duration(found.end - found.begin)}; the table has their means`;
  return html`
    <div class="timeline">
      <canvas ref=${canvas} role="img" aria-label=${said} onPointerMove=${point} onPointerLeave=${() => setUnder(null)}></canvas>
      <p class="help under">
        ${under
          ? `Step ${under.number}: ${counted(under.tokens, "token")} of ${counted(under.rows, "request")} in the ${count(under.shape)}-token shape, host ${duration(hostSeconds(under))}, device ${duration(deviceSeconds(under))}`
          : `The last ${duration(found.end - found.begin)}. Point at a step to read its figures.`}
      </p>
    </div>
  `;
}

function draw(canvas, { begin, end, shown, engines }, colours) {
  if (!canvas) return; // Another view is shown by now.
  const width = canvas.parentElement.clientWidth;
  const height = engines.length * (2 * LANE + GAP + BETWEEN) - BETWEEN + AXIS;
  const scale = globalThis.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const x = (time) => ((time - begin) / (end - begin)) * width;
  const bar = (from, to, top) => context.fillRect(x(from), top, Math.max(x(to) - x(from) - 0.5, 0.5), LANE);
  const host = colour("--step-host");
  for (const step of shown) {
    const top = engines.indexOf(step.engine) * (2 * LANE + GAP + BETWEEN);
    context.fillStyle = host;
    bar(step.at, step.at + step.dispatched, top);
    bar(step.at + step.ready, step.at + step.ended, top);
    context.fillStyle = colour(`--shape-${colours[step.shape]}`);
    bar(step.at + step.device, step.at + step.ready, top + LANE + GAP);
  }
  context.fillStyle = colour("--quiet");
  context.font = "11px system-ui, sans-serif";
  const marks = Math.max(2, Math.floor(width / 140));
  for (let mark = 0; mark <= marks; mark++) {
    context.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
    const ago = ((marks - mark) / marks) * (end - begin);
    context.fillText(ago ? `${duration(ago)} before` : "last", (mark / marks) * width, height - 5);
  }
}

function Shapes({ shapes }) {
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Steps of the last minute by shape">
      <table>
        <thead>
          <tr>
            <th scope="col" class="number">Shape</th>
            <th scope="col" class="number">Steps</th>
            <th scope="col" class="number">Tokens</th>
            <th scope="col" class="number">Host</th>
            <th scope="col" class="number">Device</th>
          </tr>
        </thead>
        <tbody>
          ${shapes.map(
            (each) => html`<tr>
              <td class="number">${counted(each.shape, "token")}</td>
              <td class="number">${count(each.count)}</td>
              <td class="number">${count(each.tokens)}</td>
              <td class="number">${duration(each.host)}</td>
              <td class="number">${duration(each.device)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  `;
}
