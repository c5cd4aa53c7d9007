// The playground: conversations on the left, the chat in the middle, settings on the right.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { before, messagesOf, newId, pairOf, pathOf, pick, rounds, withChange, withNode } from "./conversation.js";
import { Composer } from "./composer.js";
import { ExportDialog } from "./export.js";
import { chat, goOn, search } from "./generate.js";
import { Message } from "./message.js";
import { Pair, SIDES } from "./pair.js";
import { IconButton } from "./parts.js";
import { SettingsPanel } from "./panel.js";
import { Sidebar } from "./sidebar.js";
import { chatBody, inWords, isSearch, modelOf, problemOf } from "./settings.js";
import { useChoice, useConversations, useSettings } from "./state.js";
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
  const [compares, setCompares] = useChoice("compares", false);
  const [sides, changeSide] = useSettings(compares);
  const [shown, setShown] = useState(0); // which of the settings the panel has
  const side = compares ? shown : 0;
  const settings = sides[0];
  const { all, current, update, open, begin, remove } = useConversations();
  const [showSettings, setShowSettings] = useState(WIDE.matches);
  const [showList, setShowList] = useState(false);
  const [exporting, setExporting] = useState(false);
  const running = useRef(new Set());
  const [isBusy, setIsBusy] = useState(false);
  const path = pathOf(current);
  const problem = problemOf(sides[0]) || (compares && problemOf(sides[1]));
  const model = modelOf(settings, models);

  const stop = () => {
    for (const control of running.current) control.abort();
    running.current.clear();
  };
  useEffect(() => stop, []);

  // Adds an answer after `parent`, and fills it by `fill`; returns its node at once.
  function answer(conversation, parent, own, more, fill) {
    const control = new AbortController();
    running.current.add(control);
    setIsBusy(true);
    const node = {
      id: newId(),
      parent,
      role: "assistant",
      content: "",
      model: modelOf(own, models),
      setting: inWords(own),
      form: own.format,
      busy: true,
      ...more,
    };
    update(conversation, (old) => withNode(old, node));
    fill(control.signal, (news) => update(conversation, (old) => withChange(old, node.id, news))).then(() => {
      running.current.delete(control);
      if (!running.current.size) setIsBusy(false);
    });
    return node;
  }

  // One answer, or with two settings one of each; the first is shown until the other is chosen.
  function ask(conversation, parentPath) {
    stop();
    const pair = compares ? newId() : undefined;
    const nodes = sides.map((own, number) => {
      const body = chatBody(messagesOf(parentPath, own.system), own, about, models);
      const options = { tokenView: settings.tokenView, about };
      const fill = (signal, change) =>
        isSearch(own) ? search(withTree(body), signal, change) : chat(body, options, signal, change);
      return answer(conversation, parentPath.at(-1).id, own, { pair, side: number }, fill);
    });
    if (compares) update(conversation, (old) => pick(old, nodes[0]));
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
    choose: (node, index) =>
      update(current, (old) =>
        withChange(old, node.id, {
          content: node.search.choices[index].content,
          search: { ...node.search, chosen: index },
        }),
      ),
    replace: (node, index, other) => {
      const previous = before(current, node);
      const own = sides[node.side] ?? settings;
      const body = chatBody(messagesOf(previous, own.system), own, about, models);
      const tokens = [...node.tokens.slice(0, index), { ...node.tokens[index], ...other, bytes: other.bytes, chosen: true }];
      const from = { body: { ...body, model: node.model }, promptIds: node.promptIds, tokens };
      const fill = (signal, change) => goOn(from, { settings: own, about }, signal, change);
      stop();
      answer(current, node.parent, own, { model: node.model, form: node.form }, fill);
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
          ${!compares &&
          html`<${ModelChoice} models=${models} model=${model} onChange=${(name) => changeSide(0, { model: name })} />`}
          <span class="grow"></span>
          <label class="switch" title="Colours each token of an answer by its probability">
            <input
              type="checkbox"
              role="switch"
              checked=${settings.tokenView}
              onChange=${(event) => changeSide(0, { tokenView: event.target.checked })}
            />
            <span class="track" aria-hidden="true"></span>Tokens
          </label>
          <${IconButton}
            icon="columns"
            label="Compare two settings"
            aria-pressed=${String(compares)}
            onClick=${() => {
              setCompares(!compares);
              if (!compares && WIDE.matches) setShowSettings(true);
            }}
          />
          <${IconButton} icon="code" label="Show as code" disabled=${!path.length} onClick=${() => setExporting(true)} />
          <${IconButton}
            icon="sliders"
            label="Settings"
            aria-expanded=${String(showSettings)}
            onClick=${() => setShowSettings(!showSettings)}
          />
        </div>
        <${Messages} conversation=${current} path=${path} isBusy=${isBusy} settings=${settings} actions=${actions}>
          <${Start} model=${model} onChoose=${(content) => say(current, path, { role: "user", content })} />
        <//>
        <${Composer}
          about=${about}
          problem=${problem}
          busy=${isBusy}
          onStop=${stop}
          onSend=${(content, images) => say(current, path, { role: "user", content, images })}
          key=${current.id}
        />
      </section>
      <${SettingsPanel}
        about=${about}
        settings=${sides[side]}
        change=${(more) => changeSide(side, more)}
        isOpen=${showSettings}
        onClose=${() => setShowSettings(false)}
        key=${side}
      >
        ${compares &&
        html`<${SideChoice}
          side=${side}
          onSide=${setShown}
          models=${models}
          model=${modelOf(sides[side], models)}
          onModel=${(name) => changeSide(side, { model: name })}
        />`}
      <//>
      ${exporting &&
      html`<${ExportDialog}
        body=${chatBody(messagesOf(pathToAnswer(path), sides[side].system), sides[side], about, models)}
        onClose=${() => setExporting(false)}
      />`}
    </div>
  `;
}

// Without a last answer: that is what the program asks for.
const pathToAnswer = (path) => (path.at(-1)?.role === "assistant" ? path.slice(0, -1) : path);

// What the search has tried is for this page: a program need not ask for it.
const withTree = (body) => ({ ...body, return_beam_tree: true });

function SideChoice({ side, onSide, models, model, onModel }) {
  return html`
    <section>
      <div class="row spread">
        <h3 id="sides">Settings of answer</h3>
        <div class="segments" role="group" aria-labelledby="sides">
          ${SIDES.map(
            (name, index) => html`
              <button type="button" aria-pressed=${String(index === side)} onClick=${() => onSide(index)}>${name}</button>
            `,
          )}
        </div>
      </div>
      <${ModelChoice} models=${models} model=${model} onChange=${onModel} />
    </section>
  `;
}

function ModelChoice({ models, model, onChange }) {
  if (models.length < 2) return null;
  return html`
    <select aria-label="Model" class="model" value=${model} onChange=${(event) => onChange(event.target.value)}>
      ${models.map((name) => html`<option value=${name}>${name}</option>`)}
    </select>
  `;
}

const NEAR = 80; // pixels from the end that count as being there

function Messages({ conversation, path, isBusy, settings, actions, children }) {
  const box = useRef(null);
  const atEnd = useRef(true);
  const last = path.at(-1);
  const pair = last ? pairOf(conversation, last) : [];
  const others = pair.length > 1 ? path.slice(0, -1) : path;
  const versionsOf = (node) => rounds(conversation, node);
  useEffect(() => {
    if (atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [last?.id, last?.content, last?.reasoning, last?.busy]);
  const follow = ({ target }) => {
    atEnd.current = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR;
  };
  return html`
    <div class="messages" ref=${box} onScroll=${follow} tabindex="0" role="log" aria-label="Messages" aria-busy=${String(isBusy)}>
      <div class=${`column ${others === path ? "" : "wide"}`}>
        ${path.length === 0 && children}
        ${others.map(
          (node) => html`
            <${Message}
              key=${node.id}
              node=${node}
              versions=${versionsOf(node)}
              isLast=${node === last}
              isBusy=${isBusy}
              settings=${settings}
              actions=${actions}
            />
          `,
        )}
        ${others !== path &&
        html`<${Pair}
          nodes=${pair}
          picked=${last}
          rounds=${versionsOf(last)}
          isBusy=${isBusy}
          settings=${settings}
          actions=${actions}
        />`}
      </div>
    </div>
  `;
}
