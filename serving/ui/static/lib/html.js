// Preact with htm: markup as tagged templates, so that the page needs no build step. What stands in ${...} becomes text
// or a property, never markup.
import { h, render, Fragment } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "../vendor/preact-hooks.js";
export { Fragment, render };
export const html = htm.bind(h);
