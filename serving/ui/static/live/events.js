// The server's events, read while a view that shows them is seen, and not otherwise.
import { useEffect, useRef, useState } from "../lib/html.js";
import { streamJson } from "../lib/api.js";
import { History } from "./history.js";

const AGAIN_AFTER = 2000; // ms until the next try, where the server is gone

// [history, problem]
export function useEvents() {
  const history = useRef(null);
  const [, setNumber] = useState(0);
  const [problem, setProblem] = useState("");

  useEffect(() => {
    let control = null;
    let timer = 0;
    async function read() {
      control = new AbortController();
      const { signal } = control;
      try {
        for await (const event of streamJson("ui/events", { signal })) {
          if (event.bounds) history.current = new History(event.bounds);
          else history.current.add(event);
          setProblem("");
          setNumber((number) => number + 1);
        }
        setProblem("The server has ended the stream.");
      } catch (error) {
        if (signal.aborted) return;
        setProblem(error.message);
      }
      if (!signal.aborted) timer = setTimeout(read, AGAIN_AFTER);
    }
    function stop() {
      clearTimeout(timer);
      control?.abort();
      control = null;
    }
    const follow = () => {
      if (document.hidden) stop();
      else if (!control) read();
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      stop();
    };
  }, []);
  return [history.current, problem];
}
