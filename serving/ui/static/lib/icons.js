// Icons, drawn with the current colour. They are hidden from screen readers: buttons have names of their own.
import { html } from "./html.js";

const PATHS = {
  plus: ["M12 5v14M5 12h14"],
  send: ["M12 19V5M6 11l6-6 6 6"],
  stop: ["M7 7h10v10H7z"],
  copy: ["M9 9h11v11H9z", "M5 15H4V4h11v1"],
  edit: ["M4 20h4L19 9l-4-4L4 16z"],
  retry: ["M4 12a8 8 0 1 0 3-6.2", "M4 4v4h4"],
  left: ["M14 6l-6 6 6 6"],
  right: ["M10 6l6 6-6 6"],
  close: ["M6 6l12 12M18 6L6 18"],
  trash: ["M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13"],
  sliders: ["M4 7h10M18 7h2M4 17h2M10 17h10", "M16 5v4M8 15v4"],
  menu: ["M4 7h16M4 12h16M4 17h16"],
  code: ["M9 7l-5 5 5 5M15 7l5 5-5 5"],
  image: ["M4 5h16v14H4z", "M4 16l5-5 4 4 3-3 4 4"],
  tokens: ["M4 7h7M13 7h7M4 12h4M10 12h10M4 17h9M15 17h5"],
  chat: ["M4 5h16v11H10l-5 4v-4H4z"],
  pulse: ["M3 12h4l3-7 4 14 3-7h4"],
  chip: ["M7 7h10v10H7z", "M10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4"],
  check: ["M5 12l5 5 9-10"],
  columns: ["M4 5h16v14H4z", "M12 5v14"],
  key: ["M14 10a4 4 0 1 0-3 3l2 2h2v2h2v2h3v-3z"],
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    ${PATHS[name].map((d) => html`<path d=${d} />`)}
  </svg>`;
}
