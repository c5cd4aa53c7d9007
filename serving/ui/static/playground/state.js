// The conversations and settings of this browser.
import { useEffect, useRef, useState } from "../lib/html.js";
import { load, save } from "../lib/store.js";
import { newConversation, slim } from "./conversation.js";
import { DEFAULTS } from "./settings.js";

const MOST = 100;
const SAVE_AFTER = 400; // ms

const NAMES = ["settings", "settings.second"];

// [settings, change]: one of them, or two where the reader compares. The second begin as the first are.
export function useSettings(compares) {
  const [all, setAll] = useState(() => NAMES.map((name) => load(name, null)));
  const first = { ...DEFAULTS, ...all[0] };
  const sides = compares ? [first, { ...first, ...all[1] }] : [first];
  function change(side, more) {
    setAll((old) => {
      const next = [...old];
      next[side] = { ...sides[side], ...old[side], ...more };
      save(NAMES[side], next[side]);
      return next;
    });
  }
  return [sides, change];
}

export function useChoice(name, otherwise) {
  const [value, setValue] = useState(() => load(name, otherwise));
  function set(next) {
    save(name, next);
    setValue(next);
  }
  return [value, set];
}

// The newest comes first; the current one may be empty, and is kept once it has a message.
export function useConversations() {
  const [all, setAll] = useState(() => load("conversations", []));
  const [currentId, setCurrentId] = useState(() => all[0]?.id);
  const fresh = useRef(null);
  fresh.current ??= newConversation();
  const current = all.find(({ id }) => id === currentId) ?? fresh.current;

  const latest = useRef(all);
  latest.current = all;
  useEffect(() => {
    const timer = setTimeout(() => store(all), SAVE_AFTER);
    return () => clearTimeout(timer);
  }, [all]);
  useEffect(() => {
    const now = () => store(latest.current);
    addEventListener("pagehide", now);
    return () => {
      removeEventListener("pagehide", now);
      now();
    };
  }, []);

  // `make` gets the conversation as it is now, and returns a changed copy.
  function update(conversation, make) {
    setCurrentId(conversation.id);
    setAll((old) => {
      const known = old.find(({ id }) => id === conversation.id) ?? conversation;
      return [make(known), ...old.filter(({ id }) => id !== conversation.id)].slice(0, MOST);
    });
  }

  return {
    all,
    current,
    update,
    open: setCurrentId,
    begin: () => {
      fresh.current = newConversation();
      setCurrentId(fresh.current.id);
    },
    remove: (id) => {
      if (fresh.current.id === id) fresh.current = newConversation();
      setAll((old) => old.filter((each) => each.id !== id));
    },
  };
}

// Where there is no room for all, old conversations lose their pictures and tokens, and then go.
function store(all) {
  const finished = all.map((each) => ({
    ...each,
    nodes: each.nodes.map(({ busy, ...node }) => node),
  }));
  for (let kept = finished.length; kept >= 0; kept = Math.floor(kept / 2) || (kept ? 0 : -1)) {
    if (save("conversations", finished.map((each, index) => (index < kept ? each : slim(each))))) return;
  }
  save("conversations", finished.slice(0, 10).map(slim));
}
