// Where the tokens of a beam search stand in its picture: a column for each step, and no two lines that cross.

export const BOX = { width: 88, height: 26 };
const GAP = { across: 30, down: 10 };
const EDGE = 6;

// {width, height, places}: for each token {x, y}, in pixels, in the order of the tokens.
export function layout(tokens) {
  const columns = [];
  const depths = [];
  tokens.forEach(({ parent }, index) => {
    const depth = parent === null ? 0 : depths[parent] + 1;
    depths.push(depth);
    (columns[depth] ??= []).push(index);
  });
  const rows = [];
  for (const column of columns) {
    const before = (index) => (tokens[index].parent === null ? 0 : rows[tokens[index].parent]);
    column.sort((a, b) => before(a) - before(b) || a - b);
    column.forEach((index, row) => (rows[index] = row));
  }
  const most = Math.max(...columns.map(({ length }) => length));
  // Where beams end, a column is up to twice as high as the others, which stand at its middle.
  const above = (index) => (most - columns[depths[index]].length) / 2;
  return {
    width: columns.length * (BOX.width + GAP.across) - GAP.across + 2 * EDGE,
    height: most * (BOX.height + GAP.down) - GAP.down + 2 * EDGE,
    places: tokens.map((_, index) => ({
      x: EDGE + depths[index] * (BOX.width + GAP.across),
      y: EDGE + (above(index) + rows[index]) * (BOX.height + GAP.down),
    })),
  };
}

// The tokens from the prompt to the one that ends a choice, as a set of places.
export function pathTo(tokens, choice) {
  const found = new Set();
  let at = tokens.findIndex((token) => token.choice === choice);
  while (at !== -1 && at !== null) {
    found.add(at);
    at = tokens[at].parent;
  }
  return found;
}
