// Where the next message is written.
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { readImage } from "./images.js";
import { IconButton } from "./parts.js";

export function Composer({ about, problem, busy, onSend, onStop }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [wrong, setWrong] = useState("");
  const area = useRef(null);
  const file = useRef(null);

  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight, 240)}px`;
  }, [text]);

  const ready = !busy && !problem && (text.trim() || images.length);
  function send() {
    if (!ready) return;
    onSend(text, images);
    setText("");
    setImages([]);
  }

  async function add(files) {
    setWrong("");
    try {
      const read = await Promise.all([...files].filter((each) => each.type.startsWith("image/")).map(readImage));
      setImages((old) => [...old, ...read]);
    } catch (error) {
      setWrong(error.message);
    }
  }

  return html`
    <form
      class="composer"
      onSubmit=${(event) => {
        event.preventDefault();
        send();
      }}
    >
      ${(problem || wrong) && html`<p class="field-error" role="status">${problem ? `Settings: ${problem}` : wrong}</p>`}
      ${images.length > 0 &&
      html`<ul class="pictures">
        ${images.map(
          (url, index) => html`
            <li>
              <img src=${url} alt=${`Image ${index + 1} of this message`} />
              <${IconButton}
                icon="close"
                label=${`Remove image ${index + 1}`}
                onClick=${() => setImages(images.filter((_, other) => other !== index))}
              />
            </li>
          `,
        )}
      </ul>`}
      <div class="box">
        ${about.images &&
        html`
          <${IconButton} icon="image" label="Add images" onClick=${() => file.current.click()} />
          <input
            ref=${file}
            type="file"
            accept="image/*"
            multiple
            hidden
            aria-label="Images"
            onChange=${({ target }) => {
              add(target.files);
              target.value = "";
            }}
          />
        `}
        <textarea
          ref=${area}
          rows="1"
          aria-label="Message"
          placeholder="Write a message"
          value=${text}
          onInput=${(event) => setText(event.target.value)}
          onPaste=${(event) => about.images && event.clipboardData.files.length && add(event.clipboardData.files)}
          onKeyDown=${(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            send();
          }}
        />
        ${busy
          ? html`<button type="button" class="send" aria-label="Stop" title="Stop" onClick=${onStop}>
              <${Icon} name="stop" />
            </button>`
          : html`<button class="send" aria-label="Send" title="Send (Enter)" disabled=${!ready}>
              <${Icon} name="send" />
            </button>`}
      </div>
      <p class="hint">Enter sends, Shift+Enter makes a new line.</p>
    </form>
  `;
}
