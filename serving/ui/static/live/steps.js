// What single steps make together: by shape, and how many of them a picture has room for.

const PICTURE = 60; // steps, about, in a picture

export const deviceSeconds = (step) => step.ready - step.device;
// The host schedules and sends a step, and makes its outputs; between the two it waits, or works on another.
export const hostSeconds = (step) => step.dispatched + (step.ended - step.ready);

const mean = (steps, of) => steps.reduce((sum, step) => sum + of(step), 0) / steps.length;

// For each compiled shape its steps and their mean times.
export function byShape(steps) {
  const groups = Map.groupBy ? Map.groupBy(steps, ({ shape }) => shape) : grouped(steps);
  return [...groups]
    .sort(([a], [b]) => a - b)
    .map(([shape, own]) => ({
      shape,
      count: own.length,
      tokens: mean(own, ({ tokens }) => tokens),
      host: mean(own, hostSeconds),
      device: mean(own, deviceSeconds),
    }));
}

function grouped(steps) {
  const found = new Map();
  for (const step of steps) found.set(step.shape, [...(found.get(step.shape) ?? []), step]);
  return found;
}

// The last steps of each engine that fit a picture, and the seconds that it spans: {begin, end, engines}.
export function span(steps) {
  if (!steps.length) return null;
  const end = Math.max(...steps.map(({ at, ended }) => at + ended));
  const last = steps.slice(-PICTURE);
  const begin = Math.max(Math.min(...last.map(({ at }) => at)), end - 20);
  const shown = steps.filter(({ at, ended }) => at + ended >= begin);
  const engines = [...new Set(shown.map(({ engine }) => engine))].sort((a, b) => a - b);
  return { begin, end: Math.max(end, begin + 1e-3), shown, engines };
}
