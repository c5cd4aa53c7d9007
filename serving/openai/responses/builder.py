"""The items of a response, put together from the parts of a reply; every step is an event."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import UNSET

from jaxllm.serving.openai.protocol.logprobs import ChosenLogprob
from jaxllm.serving.openai.protocol.response_answers import (
    CustomCallItem,
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from jaxllm.serving.openai.protocol.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    ItemEvent,
    PartEvent,
    PartStep,
    ReasoningDeltaEvent,
    ReasoningDone,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from jaxllm.serving.openai.protocol.response_items import CustomTool, ItemStatus
from jaxllm.serving.openai.responses.items import new_id
from jaxllm.serving.openai.responses.tools import CallableTool, custom_input
from jaxllm.serving.reply.json_values import is_object
from jaxllm.serving.reply.parts import ContentDelta, ReasoningDelta, ReplyPart, ToolCallArguments, ToolCallStart

CALLS = (FunctionCallItem, CustomCallItem)
Emit = Callable[[ResponseEvent], None]


class OutputBuilder:
    """Makes the items of one response and tells each step to `emit`, in OpenAI's order.

    One item is open at a time: reasoning, a message, or a call. Whatever is of another kind closes it.
    """

    def __init__(
        self, emit: Emit, tools: Mapping[str, CallableTool] | None = None, begun: Sequence[OutputItem] = ()
    ) -> None:
        """`tools` are those of the request, by the names that the model knows; others are functions.

        `begun`: items that clients know already, whose ids the first ones get.
        """
        self._tools = tools or {}
        self._begun = begun
        self.items: list[OutputItem] = []
        self._emit = emit
        self._open: OutputItem | None = None
        self._pieces: list[str] = []
        self._logprobs: list[ChosenLogprob] = []
        self._waiting: list[ChosenLogprob] = []

    def add(self, parts: Iterable[ReplyPart], logprobs: list[ChosenLogprob]) -> None:
        """Take parts, and `logprobs`, which go with the next text: that text may be told from marks and reasoning
        later than its tokens came.
        """
        self._waiting += logprobs
        for part in parts:
            match part:
                case ContentDelta(text):
                    self._add_text(text)
                case ReasoningDelta(text):
                    self._add_reasoning(text)
                case ToolCallStart():
                    self._begin(self._call(part))
                case ToolCallArguments(_, arguments):
                    self._add_arguments(arguments)

    def finish(self, *, complete: bool) -> None:
        """The reply is over; with `complete` false it was cut off. A reply of nothing is a message without text."""
        if complete and not self.items:
            self._begin_message()
        self._close("completed" if complete else "incomplete")

    def _add_text(self, text: str) -> None:
        if not isinstance(self._open, OutputMessage):
            self._begin_message()
        assert self._open is not None
        logprobs, self._waiting = self._waiting, []
        self._pieces.append(text)
        self._logprobs += logprobs
        self._emit(TextDelta(item_id=self._open.id, output_index=self._place, delta=text, logprobs=logprobs))

    def _add_reasoning(self, text: str) -> None:
        if not isinstance(self._open, ReasoningItem):
            item = ReasoningItem(id=new_id(ReasoningItem), status="in_progress", content=[])
            self._begin(item)
            self._part("response.content_part.added", item, ReasoningText(text=""))
        assert self._open is not None
        self._pieces.append(text)
        self._emit(ReasoningDeltaEvent(item_id=self._open.id, output_index=self._place, delta=text))

    def _call(self, part: ToolCallStart) -> FunctionCallItem | CustomCallItem:
        """The item of a call, of a function unless the request says otherwise."""
        given = self._tools.get(part.name)
        name = part.name if given is None else given.tool.name
        namespace = UNSET if given is None or given.namespace is None else given.namespace.name
        if given is not None and isinstance(given.tool, CustomTool):
            return CustomCallItem(
                id=new_id(CustomCallItem),
                status="in_progress",
                call_id=part.id,
                name=name,
                input="",
                namespace=namespace,
            )
        return FunctionCallItem(
            id=new_id(FunctionCallItem),
            status="in_progress",
            call_id=part.id,
            name=name,
            arguments="",
            namespace=namespace,
        )

    def _add_arguments(self, arguments: str) -> None:
        assert isinstance(self._open, CALLS)
        self._pieces.append(arguments)
        if isinstance(self._open, CustomCallItem):
            return  # Its text is inside of them.
        self._emit(ArgumentsDelta(item_id=self._open.id, output_index=self._place, delta=arguments))

    def _begin_message(self) -> None:
        message = OutputMessage(id=new_id(OutputMessage), status="in_progress", content=[])
        self._begin(message)
        self._part("response.content_part.added", message, OutputText(text=""))

    @property
    def _place(self) -> int:
        return len(self.items) - 1

    def _begin(self, item: OutputItem) -> None:
        self._close("completed")
        if len(self.items) < len(self._begun):
            known = self._begun[len(self.items)]
            item.id = known.id
            if isinstance(item, CALLS) and isinstance(known, CALLS):
                item.call_id = known.call_id
        self.items.append(item)
        self._open = item
        self._emit(ItemEvent(type="response.output_item.added", output_index=self._place, item=item))

    def _close(self, status: ItemStatus) -> None:
        item, place, text = self._open, self._place, "".join(self._pieces)
        if item is None:
            return
        match item:
            case OutputMessage():
                if self._waiting:
                    # Of tokens without text, such as an end that the request ignores: who adds deltas up has them, too.
                    self._add_text("")
                logprobs = self._logprobs
                self._emit(TextDone(item_id=item.id, output_index=place, text=text, logprobs=logprobs))
                item.content = [OutputText(text=text, logprobs=logprobs)]
                self._part("response.content_part.done", item, item.content[0])
            case ReasoningItem():
                self._emit(ReasoningDone(item_id=item.id, output_index=place, text=text))
                item.content = [ReasoningText(text=text)]
                self._part("response.content_part.done", item, item.content[0])
            case FunctionCallItem():
                self._emit(ArgumentsDone(item_id=item.id, output_index=place, name=item.name, arguments=text))
                item.arguments = text
                if not is_object(text):
                    # A stop string came within it, or the model left it open: it is not to be run.
                    status = "incomplete"
            case CustomCallItem():
                item.input = custom_input(text)
                if item.input:
                    self._emit(CustomInputDelta(item_id=item.id, output_index=place, delta=item.input))
                self._emit(CustomInputDone(item_id=item.id, output_index=place, input=item.input))
        item.status = status
        self._emit(ItemEvent(type="response.output_item.done", output_index=place, item=item))
        self._open, self._pieces, self._logprobs = None, [], []

    def _part(self, step: PartStep, item: OutputItem, part: OutputText | ReasoningText) -> None:
        self._emit(PartEvent(type=step, item_id=item.id, output_index=self._place, part=part))
