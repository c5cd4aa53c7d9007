// What the events of the server make together: rates from differences of totals, over the last two minutes.

export const WINDOW = 120; // seconds of the curves
const HISTOGRAM_WINDOW = 60; // seconds that a histogram tells of
const STEPS_WINDOW = 60; // seconds of single steps
const MOST_STEPS = 4000;

// As the server's `StepRecord`.
const FIELDS = ["number", "began", "dispatched", "device", "ready", "ended", "shape", "tokens", "rows", "flops", "bytes"];

export class History {
  constructor(bounds) {
    this.bounds = bounds;
    this.snapshots = [];
    this.steps = []; // of the last minute, the newest last, with times in seconds of the snapshots' clock
  }

  add(snapshot) {
    const last = this.snapshots.at(-1);
    // After a restart totals begin anew.
    if (last && snapshot.counters.generation_tokens < last.counters.generation_tokens) this.snapshots = [];
    this.snapshots.push(snapshot);
    while (snapshot.time - this.snapshots[0].time > WINDOW) this.snapshots.shift();
    this.addSteps(snapshot);
  }

  addSteps({ time, timeline }) {
    const found = timeline.flatMap(({ engine, now, steps }) =>
      steps.map((values) => {
        const step = { engine };
        FIELDS.forEach((name, index) => (step[name] = values[index]));
        // Engines of other hosts have other clocks.
        step.at = time - (now - step.began);
        return step;
      }),
    );
    this.steps = [...this.steps, ...found].filter(({ at }) => time - at <= STEPS_WINDOW).slice(-MOST_STEPS);
  }

  get latest() {
    return this.snapshots.at(-1);
  }

  // Of each snapshot but the first: the growth of a total in a second.
  rates(total) {
    return this.snapshots.slice(1).map((now, index) => {
      const before = this.snapshots[index];
      return (total(now) - total(before)) / Math.max(now.time - before.time, 1e-3);
    });
  }

  values(of) {
    return this.snapshots.slice(1).map(of);
  }

  // Seconds before now, for the curves.
  times() {
    return this.snapshots.slice(1).map(({ time }) => time - this.latest.time);
  }

  // The growth of a total within the last seconds, per second.
  rate(total, seconds = 5) {
    const { time } = this.latest;
    const from = this.snapshots.find((each) => time - each.time <= seconds);
    return from === this.latest ? 0 : (total(this.latest) - total(from)) / (time - from.time);
  }

  // {counts, total, median, high}: what was observed in the last minute; the quantiles are null where nothing was.
  histogram(name) {
    const { time } = this.latest;
    const from = this.snapshots.find((each) => time - each.time <= HISTOGRAM_WINDOW);
    const counts = this.latest.histograms[name].map((count, index) => count - from.histograms[name][index]);
    const total = counts.reduce((sum, count) => sum + count, 0);
    return { counts, total, median: this.quantile(name, counts, 0.5), high: this.quantile(name, counts, 0.95) };
  }

  // As Prometheus has it: even within a bucket.
  quantile(name, counts, share) {
    const bounds = this.bounds[name];
    const wanted = share * counts.reduce((sum, count) => sum + count, 0);
    let seen = 0;
    for (const [index, count] of counts.entries()) {
      if (count && seen + count >= wanted) {
        const low = index ? bounds[index - 1] : 0;
        const high = bounds[index] ?? bounds.at(-1);
        return low + ((high - low) * (wanted - seen)) / count;
      }
      seen += count;
    }
    return null;
  }
}
