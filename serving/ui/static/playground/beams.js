// A beam search: the texts that it found (one is the answer), and the tree of what it tried.
import { html, useMemo } from "../lib/html.js";
import { BOX, layout, pathTo } from "./beam_layout.js";
import { level, percent, visible } from "./token.js";
import { Legend } from "./tokens.js";

const MOST_LETTERS = 10;

export function Beams({ node, canChoose, onChoose }) {
  const { search } = node;
  return html`
    <section class="beams" aria-label="Beam search">
      <ol class="found" aria-label="Texts that the search found, the best first">
        ${search.choices.map(
          ({ content, score }, index) => html`
            <li>
              <button
                type="button"
                aria-pressed=${String(index === search.chosen)}
                disabled=${!canChoose}
                title=${canChoose ? "Take this text as the answer" : "The conversation went on from another text"}
                onClick=${() => onChoose(index)}
              >
                <span class="content">${content || "(empty)"}</span>
                ${score !== null && html`<span class="score">score ${score.toFixed(2).replace(/^-(0\.00)$/, "$1")}</span>`}
              </button>
            </li>
          `,
        )}
      </ol>
      ${search.tree && html`<${Tree} tree=${search.tree} chosen=${search.chosen} />`}
    </section>
  `;
}

function Tree({ tree, chosen }) {
  const { tokens } = tree;
  const { width, height, places } = useMemo(() => layout(tokens), [tokens]);
  const path = useMemo(() => pathTo(tokens, chosen), [tokens, chosen]);
  const onPath = (index) => (path.has(index) ? "on" : "");
  if (!tokens.length) return null;
  return html`
    <div class="tree" tabindex="0" role="region" aria-label="Tree of the search">
      <svg
        width=${width}
        height=${height}
        viewBox=${`0 0 ${width} ${height}`}
        role="img"
        aria-label=${`What the search tried: ${tokens.length} tokens in columns of steps. The texts above are its results.`}
      >
        ${tokens.map(
          ({ parent }, index) =>
            parent !== null && html`<path class=${`branch ${onPath(index)}`} d=${branch(places[parent], places[index])} />`,
        )}
        ${tokens.map((token, index) => html`<${Token} token=${token} place=${places[index]} on=${onPath(index)} />`)}
      </svg>
    </div>
    <p class="help">
      A column is a step, with the tokens that beams went on with; the chosen text is marked.
      ${tree.is_whole ? "" : " The last steps are left out: there were too many tokens."}
    </p>
    <${Legend} />
  `;
}

function Token({ token, place, on }) {
  const text = visible(token.token);
  const share = Math.exp(token.logprob);
  const end = token.finish_reason ? `, ends (${token.finish_reason}) with score ${token.score.toFixed(3)}` : "";
  return html`
    <g class=${`tried p${level(share)} ${on} ${token.finish_reason ? "ends" : ""}`}>
      <title>${`${text}, ${percent(share)}, sum ${token.total.toFixed(2)}${end}`}</title>
      <rect x=${place.x} y=${place.y} width=${BOX.width} height=${BOX.height} rx="6" />
      <text x=${place.x + 8} y=${place.y + 17}>
        ${text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text}
      </text>
    </g>
  `;
}

function branch(from, to) {
  const [x, y] = [from.x + BOX.width, from.y + BOX.height / 2];
  const [endX, endY] = [to.x, to.y + BOX.height / 2];
  const middle = (x + endX) / 2;
  return `M${x} ${y}C${middle} ${y} ${middle} ${endY} ${endX} ${endY}`;
}
