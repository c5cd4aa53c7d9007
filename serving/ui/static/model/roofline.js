// Where steps lie below the roofline: operations per byte across, operations a second upwards, both logarithmic.
import { html } from "../lib/html.js";
import { count, counted, duration } from "../lib/numbers.js";
import { deviceSeconds } from "../live/steps.js";

const WIDTH = 640;
const HEIGHT = 300;
const LEFT = 74;
const BOTTOM = 38;
const MOST_POINTS = 300;
const SHAPES = 5;

const UNITS = ["", "k", "M", "G", "T", "P"];
function short(number) {
  const power = Math.max(0, Math.min(Math.floor(Math.log10(number) / 3), UNITS.length - 1));
  const value = number / 1000 ** power;
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)}${UNITS[power] ? ` ${UNITS[power]}` : ""}`;
}

// The chip's peaks where they are known, else the most that a step has reached.
function peaksOf(view, points) {
  if (view.peak_flops && view.peak_bandwidth) return { flops: view.peak_flops, bandwidth: view.peak_bandwidth, known: true };
  return {
    flops: Math.max(...points.map(({ speed }) => speed)),
    bandwidth: Math.max(...points.map(({ speed, intensity }) => speed / intensity)),
    known: false,
  };
}

export function Roofline({ view, steps }) {
  const points = steps
    .filter((step) => step.flops > 0 && deviceSeconds(step) > 0)
    .slice(-MOST_POINTS)
    .map((step) => ({ step, intensity: step.flops / step.bytes, speed: step.flops / deviceSeconds(step) }));
  return html`
    <section class="card wide" aria-label="Roofline">
      <header><h2>Roofline</h2></header>
      ${points.length ? html`<${Plot} points=${points} peaks=${peaksOf(view, points)} />` : html`<p class="quiet none">No step in the last minute.</p>`}
    </section>
  `;
}

function Plot({ points, peaks }) {
  const intensities = points.map(({ intensity }) => intensity);
  const speeds = points.map(({ speed }) => speed);
  const ridge = peaks.flops / peaks.bandwidth;
  const low = Math.log10(Math.min(...intensities, ridge)) - 0.3;
  const high = Math.log10(Math.max(...intensities, ridge)) + 0.5;
  const bottom = Math.log10(Math.min(...speeds)) - 0.3;
  const top = Math.log10(peaks.flops) + 0.25;
  const x = (value) => LEFT + ((Math.log10(value) - low) / (high - low)) * (WIDTH - LEFT - 10);
  const y = (value) => 8 + ((top - Math.log10(value)) / (top - bottom)) * (HEIGHT - BOTTOM - 8);
  const roof = (intensity) => Math.min(peaks.flops, peaks.bandwidth * intensity);
  const best = Math.max(...points.map(({ intensity, speed }) => speed / roof(intensity)));
  const shapes = [...new Set(points.map(({ step }) => step.shape))].sort((a, b) => a - b);
  const clip = 10 ** low;
  return html`
    <div class="plot-scroll" tabindex="0" role="region" aria-label="Plot of the roofline">
      <svg
        class="roofline"
        viewBox=${`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label=${`${points.length} steps; the best reaches ${Math.round(100 * best)} % of the roof at its operations per byte`}
      >
        <clipPath id="plot"><rect x=${LEFT} y="0" width=${WIDTH - LEFT} height=${HEIGHT - BOTTOM + 4} /></clipPath>
        ${decades(low, high).map(
          (power) => html`
            <path class="grid" d=${`M${x(10 ** power)} 8V${HEIGHT - BOTTOM}`} />
            <text x=${x(10 ** power)} y=${HEIGHT - BOTTOM + 16} text-anchor="middle">${power < 0 ? 10 ** power : count(10 ** power)}</text>
          `,
        )}
        ${decades(bottom, top).map(
          (power) => html`
            <path class="grid" d=${`M${LEFT} ${y(10 ** power)}H${WIDTH - 10}`} />
            <text x=${LEFT - 8} y=${y(10 ** power) + 4} text-anchor="end">${short(10 ** power)}</text>
          `,
        )}
        <text x=${LEFT} y=${HEIGHT - 4}>operations per byte</text>
        <g clip-path="url(#plot)">
          <path
            class=${`roof ${peaks.known ? "" : "seen"}`}
            d=${`M${x(clip)} ${y(roof(clip))}L${x(ridge)} ${y(peaks.flops)}H${WIDTH - 10}`}
          />
          ${points.map(
            ({ step, intensity, speed }) => html`
              <circle class=${`shape${shapes.indexOf(step.shape) % SHAPES}`} cx=${x(intensity)} cy=${y(speed)} r="4">
                <title>
                  ${`Step ${step.number}, ${counted(step.tokens, "token")}: ${short(speed)} operations/s at ${intensity.toFixed(1)} per byte, ${duration(deviceSeconds(step))}`}
                </title>
              </circle>
            `,
          )}
        </g>
      </svg>
    </div>
    <ul class="keys">
      ${shapes.map((shape, index) => html`<li><i class=${`mark shape${index % SHAPES}`}></i>${count(shape)}-token shape</li>`)}
    </ul>
    <p class="help">
      Each point is a step of the last minute: operations a second of a device, by the work that jaxllm plan counts.
      ${peaks.known
        ? ` The line is the chip's peak: ${short(peaks.flops)} operations and ${short(peaks.bandwidth)} bytes a second.`
        : ` This device's peaks are not known: the dashed line is the most that a step here reached, ${short(peaks.flops)} operations and ${short(peaks.bandwidth)} bytes a second.`}
      ${" Left of the bend memory is the limit, right of it arithmetic."}
    </p>
  `;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.ceil(low); power <= high; power++) found.push(power);
  return found;
}
