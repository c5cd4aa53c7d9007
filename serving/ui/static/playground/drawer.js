// A part at the side of a wide window, which lies over the others in a narrow one.
import { html, useEffect, useRef } from "../lib/html.js";
import { IconButton } from "./parts.js";

export function Drawer({ name, label, isOpen, onClose, children }) {
  const aside = useRef(null);
  useEffect(() => {
    if (!isOpen || getComputedStyle(aside.current).position !== "fixed") return undefined;
    const back = document.activeElement;
    aside.current.focus();
    return () => back?.focus();
  }, [isOpen]);
  return html`
    <div class=${`backdrop ${isOpen ? "open" : ""}`} onClick=${onClose}></div>
    <aside
      ref=${aside}
      class=${`drawer drawer-${name} ${isOpen ? "open" : ""}`}
      aria-label=${label}
      tabindex="-1"
      onKeyDown=${(event) => {
        if (event.key === "Escape") onClose();
      }}
    >
      <div class="drawer-head">
        <h2>${label}</h2>
        <${IconButton} icon="close" label=${`Close ${label.toLowerCase()}`} onClick=${onClose} />
      </div>
      ${children}
    </aside>
  `;
}
