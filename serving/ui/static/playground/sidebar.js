// The conversations of this browser.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { titleOf } from "./conversation.js";
import { Drawer } from "./drawer.js";
import { IconButton } from "./parts.js";

export function Sidebar({ all, current, isOpen, onOpen, onBegin, onRemove, onClose }) {
  return html`
    <${Drawer} name="list" label="Conversations" isOpen=${isOpen} onClose=${onClose}>
      <button type="button" class="begin" onClick=${onBegin}><${Icon} name="plus" /> New conversation</button>
      <ul class="conversations">
        ${all.map(
          (each) => html`
            <li key=${each.id}>
              <button
                type="button"
                class="conversation"
                aria-current=${each.id === current.id ? "true" : undefined}
                onClick=${() => onOpen(each.id)}
              >
                ${titleOf(each)}
              </button>
              <${IconButton} icon="trash" label=${`Delete “${titleOf(each)}”`} onClick=${() => onRemove(each.id)} />
            </li>
          `,
        )}
      </ul>
      ${!all.length && html`<p class="quiet">Nothing yet.</p>`}
    <//>
  `;
}
