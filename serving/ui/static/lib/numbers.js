// Numbers as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(Math.round(number));

// "1 token", "2 tokens".
export const counted = (number, noun) => `${count(number)} ${noun}${count(number) === "1" ? "" : "s"}`;

export function rate(number) {
  if (number >= 100 || number === 0) return count(number);
  return number.toFixed(1);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

export const share = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

// Powers of 1024, as memory is counted.
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (number >= 1024 && power < units.length - 1) [number, power] = [number / 1024, power + 1];
  return `${number < 10 && power ? number.toFixed(1) : Math.round(number)} ${units[power]}`;
}
