// The token view: each token coloured by its probability, with what else the model thought of.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { level, percent, probability, visible } from "./token.js";

// One token is reached with Tab, the others from there with the arrow keys: an answer has hundreds.
export function Tokens({ node, why, onReplace }) {
  const [shown, setShown] = useState(null);
  const [entry, setEntry] = useState(0);
  const box = useRef(null);
  const { tokens } = node;

  const buttonOf = (index) => box.current.querySelector(`[data-index="${index}"]`);

  function keys(event) {
    const from = Number(event.target.dataset?.index);
    if (Number.isNaN(from)) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      toggle(from);
    }
    const to = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined || !tokens[to]) return;
    event.preventDefault();
    setEntry(to);
    buttonOf(to).focus();
  }

  const toggle = (index) => setShown(shown === index ? null : index);

  function close(refocus) {
    if (refocus && shown !== null) buttonOf(shown)?.focus();
    setShown(null);
  }

  return html`
    <div class="text tokens" ref=${box} role="group" aria-label="Tokens of the answer" onKeyDown=${keys}>
      ${tokens.map((token, index) => {
        const share = probability(token);
        // No <button>: browsers make boxes of those, and a token may begin in one line and end in the next.
        return html`<span
          role="button"
          key=${index}
          data-index=${index}
          tabindex=${index === entry ? 0 : -1}
          class=${`token p${level(share)} ${token.chosen ? "chosen" : ""}`}
          aria-label=${`${visible(token.text)}, ${percent(share)}`}
          aria-haspopup="dialog"
          aria-expanded=${String(shown === index)}
          onClick=${() => toggle(index)}
        >${token.text || visible("")}</span>`;
      })}
      ${shown !== null && tokens[shown] &&
      html`<${Alternatives}
        key=${shown}
        token=${tokens[shown]}
        anchor=${() => buttonOf(shown)}
        why=${why}
        onClose=${close}
        onTake=${(other) => {
          setShown(null);
          onReplace(shown, other);
        }}
      />`}
    </div>
    <${Legend} />
  `;
}

function Alternatives({ token, anchor, why, onClose, onTake }) {
  const box = useRef(null);

  useLayoutEffect(() => {
    const { style, offsetWidth, offsetHeight } = box.current;
    const at = anchor().getBoundingClientRect();
    const below = at.bottom + 6 + offsetHeight < innerHeight;
    style.left = `${Math.max(8, Math.min(at.left, innerWidth - offsetWidth - 8))}px`;
    style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - offsetHeight - 6)}px`;
    box.current.querySelector("button:not(:disabled)")?.focus({ preventScroll: true });
  }, []);

  useEffect(() => {
    const outside = ({ target }) => {
      if (!box.current.contains(target) && !anchor()?.contains(target)) onClose(false);
    };
    const scrolled = ({ target }) => target.contains?.(box.current) && onClose(false);
    addEventListener("pointerdown", outside);
    addEventListener("scroll", scrolled, true);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("scroll", scrolled, true);
    };
  }, []);

  function keys(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      onClose(true);
    }
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const buttons = [...box.current.querySelectorAll("button:not(:disabled)")];
    buttons.at((buttons.indexOf(document.activeElement) + by) % buttons.length)?.focus();
  }

  return html`
    <div
      class="alternatives"
      ref=${box}
      role="dialog"
      aria-label=${`Alternatives to ${visible(token.text)}`}
      onKeyDown=${keys}
      tabindex="-1"
    >
      <p class="help">${why || "Take another token, and the answer goes on from there."}</p>
      <ol>
        ${token.others.map((other) => {
          const share = probability(other);
          const same = other.id === token.id;
          return html`
            <li>
              <button
                type="button"
                disabled=${same || why !== ""}
                aria-label=${`${visible(other.text)}, ${percent(share)}${same ? ", in the answer" : ""}`}
                onClick=${() => onTake(other)}
              >
                <code>${visible(other.text)}</code>
                ${same && html`<span class="badge">in the answer</span>`}
                <span class="share">${percent(share)}</span>
                <meter min="0" max="1" value=${share} aria-hidden="true"></meter>
              </button>
            </li>
          `;
        })}
      </ol>
      <p class="help">Token ${token.id}, log-probability ${token.logprob.toFixed(3)}</p>
    </div>
  `;
}

const LEGEND = ["over 90 %", "70–90 %", "40–70 %", "20–40 %", "5–20 %", "under 5 %"];

export function Legend() {
  return html`<ul class="legend" aria-label="Probability of a token">
    ${LEGEND.map((text, number) => html`<li><span class=${`token p${number}`} aria-hidden="true"></span>${text}</li>`)}
  </ul>`;
}
