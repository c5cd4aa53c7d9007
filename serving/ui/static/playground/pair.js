// Two answers to the same message, with two settings; the conversation goes on from the one that is chosen.
import { html } from "../lib/html.js";
import { Message, Versions } from "./message.js";

export const SIDES = ["A", "B"];

export function Pair({ nodes, picked, rounds, isBusy, settings, actions }) {
  return html`
    <section class="pair-answers" aria-label="Two answers">
      <div class="sides">
        ${nodes.map(
          (node) => html`
            <section class=${`side ${node === picked ? "picked" : ""}`} aria-label=${`Answer ${SIDES[node.side]}`} key=${node.id}>
              <header class="side-head">
                <span class="badge">${SIDES[node.side]}</span>
                <span class="quiet">${node.setting}</span>
                <button type="button" aria-pressed=${String(node === picked)} onClick=${() => actions.pick(node)}>
                  ${node === picked ? "Goes on from here" : "Go on from here"}
                </button>
              </header>
              <${Message}
                node=${node}
                versions=${[node]}
                isLast=${node === picked}
                isBusy=${isBusy}
                settings=${settings}
                actions=${actions}
              />
            </section>
          `,
        )}
      </div>
      <${Versions} node=${picked} versions=${rounds} disabled=${isBusy} onPick=${actions.pick} />
    </section>
  `;
}
