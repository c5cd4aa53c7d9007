// The playground: conversations on the left, the chat in the middle, settings on the right.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { before, messagesOf, newId, pathOf, pick, siblings, withChange, withNode } from "./conversation.js";
import { Composer } from "./composer.js";
import { ExportDialog } from "./export.js";
import { chat, goOn } from "./generate.js";
import { Message } from "./message.js";
import { IconButton } from "./parts.js";
import { SettingsPanel } from "./panel.js";
import { Sidebar } from "./sidebar.js";
import { chatBody, problemOf } from "./settings.js";
import { useConversations, useSettings } from "./state.js";
import { Start } from "./start.js";

const WIDE = matchMedia("(min-width: 1180px)");

export function Playground({ about, models }) {
  if (about.runner !== "generate" || !about.chats) return html`<${NoChat} about=${about} />`;
  return html`<${Chats} about=${about} models=${models} />`;
}

function NoChat({ about }) {
  const why = {
    pooling: "This model turns texts into vectors or scores and writes none. /docs lists the routes for that.",
    transcribe: "This model writes down speech. Send sound to /v1/audio/transcriptions.",
    generate: "This model has no chat template. Start the server with --chat-template, or use /v1/completions.",
  };
  return html`<div class="empty"><h1>No chat with ${about.model}</h1><p>${why[about.runner]}</p></div>`;
}

function Chats({ about, models }) {
  const [settings, changeSettings] = useSettings();
  const { all, current, update, open, begin, remove } = useConversations();
  const [showSettings, setShowSettings] = useState(WIDE.matches);
  const [showList, setShowList] = useState(false);
  const [exporting, setExporting] = useState(false);
  const running = useRef(null);
  const [busyId, setBusyId] = useState(null);
  const path = pathOf(current);
  const problem = problemOf(settings);
  const model = models.includes(settings.model) ? settings.model : models[0];

  useEffect(() => () => running.current?.abort(), []);

  // Adds an answer after `parent`, and fills it by `fill`.
  async function answer(conversation, parent, form, fill) {
    running.current?.abort();
    const control = new AbortController();
    running.current = control;
    const node = { id: newId(), parent, role: "assistant", content: "", model, form, busy: true };
    update(conversation, (old) => withNode(old, node));
    setBusyId(node.id);
    await fill(node, control.signal, (news) => update(conversation, (old) => withChange(old, node.id, news)));
    if (running.current === control) {
      running.current = null;
      setBusyId(null);
    }
  }

  function ask(conversation, parentPath) {
    const body = chatBody(messagesOf(parentPath, settings.system), settings, about, models);
    const options = { tokenView: settings.tokenView, about };
    const fill = (_, signal, change) => chat(body, options, signal, change);
    return answer(conversation, parentPath.at(-1).id, settings.format, fill);
  }

  function say(conversation, beforePath, more) {
    const node = { id: newId(), parent: beforePath.at(-1)?.id ?? null, ...more };
    update(conversation, (old) => withNode(old, node));
    return ask(conversation, [...beforePath, node]);
  }

  const actions = {
    retry: (node) => ask(current, before(current, node)),
    resend: (node, content) => say(current, before(current, node), { role: "user", content, images: node.images }),
    pick: (node) => update(current, (old) => pick(old, node)),
    results: (node, results) => sendResults(node, results),
    replace: (node, index, other) => {
      const previous = before(current, node);
      const body = chatBody(messagesOf(previous, settings.system), settings, about, models);
      const tokens = [...node.tokens.slice(0, index), { ...node.tokens[index], ...other, bytes: other.bytes, chosen: true }];
      const from = { body: { ...body, model: node.model }, promptIds: node.promptIds, tokens };
      const fill = (_, signal, change) => goOn(from, { settings, about }, signal, change);
      return answer(current, node.parent, node.form, fill);
    },
  };

  function sendResults(node, results) {
    let parent = node.id;
    const made = node.calls.map((call, index) => {
      const result = { id: newId(), parent, role: "tool", callId: call.id, name: call.name, content: results[index] };
      parent = result.id;
      return result;
    });
    update(current, (old) => made.reduce(withNode, old));
    return ask(current, [...before(current, node), node, ...made]);
  }

  return html`
    <div class="playground">
      <${Sidebar}
        all=${all}
        current=${current}
        isOpen=${showList}
        onOpen=${(id) => {
          open(id);
          setShowList(false);
        }}
        onBegin=${() => {
          begin();
          setShowList(false);
        }}
        onRemove=${remove}
        onClose=${() => setShowList(false)}
      />
      <section class="chat" aria-label="Chat">
        <div class="bar">
          <span class="only-narrow">
            <${IconButton} icon="menu" label="Conversations" onClick=${() => setShowList(true)} />
          </span>
          <${ModelChoice} models=${models} model=${model} onChange=${(name) => changeSettings({ model: name })} />
          <span class="grow"></span>
          <label class="switch" title="Colours each token of an answer by its probability">
            <input
              type="checkbox"
              role="switch"
              checked=${settings.tokenView}
              onChange=${(event) => changeSettings({ tokenView: event.target.checked })}
            />
            <span class="track" aria-hidden="true"></span>Tokens
          </label>
          <${IconButton} icon="code" label="Show as code" disabled=${!path.length} onClick=${() => setExporting(true)} />
          <${IconButton}
            icon="sliders"
            label="Settings"
            aria-expanded=${String(showSettings)}
            onClick=${() => setShowSettings(!showSettings)}
          />
        </div>
        <${Messages} conversation=${current} path=${path} busyId=${busyId} settings=${settings} actions=${actions}>
          <${Start} model=${model} onChoose=${(content) => say(current, path, { role: "user", content })} />
        <//>
        <${Composer}
          about=${about}
          problem=${problem}
          busy=${busyId !== null}
          onStop=${() => running.current?.abort()}
          onSend=${(content, images) => say(current, path, { role: "user", content, images })}
          key=${current.id}
        />
      </section>
      <${SettingsPanel}
        about=${about}
        settings=${settings}
        change=${changeSettings}
        isOpen=${showSettings}
        onClose=${() => setShowSettings(false)}
      />
      ${exporting &&
      html`<${ExportDialog}
        body=${chatBody(messagesOf(pathToAnswer(path), settings.system), settings, about, models)}
        onClose=${() => setExporting(false)}
      />`}
    </div>
  `;
}

// Without a last answer: that is what the program asks for.
const pathToAnswer = (path) => (path.at(-1)?.role === "assistant" ? path.slice(0, -1) : path);

function ModelChoice({ models, model, onChange }) {
  if (models.length < 2) return null;
  return html`
    <select aria-label="Model" class="model" value=${model} onChange=${(event) => onChange(event.target.value)}>
      ${models.map((name) => html`<option value=${name}>${name}</option>`)}
    </select>
  `;
}

const NEAR = 80; // pixels from the end that count as being there

function Messages({ conversation, path, busyId, settings, actions, children }) {
  const box = useRef(null);
  const atEnd = useRef(true);
  const last = path.at(-1);
  useEffect(() => {
    if (atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [last?.id, last?.content, last?.reasoning, last?.busy]);
  const follow = ({ target }) => {
    atEnd.current = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR;
  };
  return html`
    <div class="messages" ref=${box} onScroll=${follow} tabindex="0" role="log" aria-label="Messages" aria-busy=${String(busyId !== null)}>
      <div class="column">
        ${path.length === 0 && children}
        ${path.map(
          (node) => html`
            <${Message}
              key=${node.id}
              node=${node}
              versions=${siblings(conversation, node)}
              isLast=${node === last}
              isBusy=${busyId !== null}
              settings=${settings}
              actions=${actions}
            />
          `,
        )}
      </div>
    </div>
  `;
}
