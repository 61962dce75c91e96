import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import processors

from dualpace.gateway.errors import ApiError
from dualpace.gateway.protocol.chat import ChatMessage
from dualpace.gateway.text.model import ServedModel, served_model
from dualpace.gateway.text.prompts import (
    ChatOptions,
    EncodingOptions,
    PromptBuilder,
    TokenizedPrompt,
)
from tests.unit.gateway.conftest import ByteFallbackTokenizer

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def prompts(demo_model: ServedModel) -> AsyncIterator[PromptBuilder]:
    builder = PromptBuilder(demo_model, num_threads=1)
    yield builder
    builder.close()


def message(role: str, content: str | None, **fields: object) -> ChatMessage:
    return ChatMessage.model_validate({"role": role, "content": content, **fields})


def with_template(model: ServedModel, source: str) -> PromptBuilder:
    again = served_model(("x",), model.tokenizer, chat_template=source)
    return PromptBuilder(again, num_threads=1)


def prompts_text(builder: PromptBuilder, prompt: TokenizedPrompt) -> str:
    ids = list(prompt.token_ids)
    return builder._model.tokenizer.decode(ids, skip_special_tokens=False)


async def test_gold_conversations_become_the_gold_tokens(prompts: PromptBuilder) -> None:
    """The reference's prompt ids, by transformers' apply_chat_template on the same model."""
    gold = json.loads((Path(__file__).parents[2] / "gold/smollm2_greedy.json").read_text())
    chats = [prompt for prompt in gold["prompts"] if prompt["kind"] == "chat"]
    assert chats
    for chat in chats:
        messages = [message(**m) for m in chat["messages"]]
        assert list((await prompts.chat(messages, 8192)).token_ids) == chat["prompt_token_ids"]


async def test_a_developer_is_a_system_where_the_template_does_not_know_the_role(
    demo_model: ServedModel,
) -> None:
    say = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    knowing = say + "{# developer #}"
    for source, role in ((say, "system"), (knowing, "developer")):
        prompt = await with_template(demo_model, source).chat([message("developer", "x")], 100)
        assert demo_model.tokenizer.decode(list(prompt.token_ids)) == f"{role}:x;"


async def test_templates_get_calls_with_their_arguments_as_objects(demo_model: ServedModel) -> None:
    source = (
        "{% for m in messages %}{{ m.role }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}"
        "{{ m.tool_call_id is defined }}{{ m.name is defined }}{{ m.content }};{% endfor %}"
    )
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Tartu"}'}}
    messages = [
        message("assistant", None, tool_calls=[call]),
        message("tool", "4 °C", tool_call_id="c1", name="weather"),
    ]
    prompt = await with_template(demo_model, source).chat(messages, 1000)
    text = demo_model.tokenizer.decode(list(prompt.token_ids))
    assert text == "assistantTartuFalseFalse;toolTrueTrue4 °C;"


async def test_arguments_that_are_not_json_are_refused(prompts: PromptBuilder) -> None:
    call = {"id": "c1", "function": {"name": "weather", "arguments": "{city"}}
    with pytest.raises(ApiError, match="not JSON"):
        await prompts.chat([message("assistant", "x", tool_calls=[call])], 100)


async def test_half_a_utf16_pair_within_arguments_is_refused(demo_model: ServedModel) -> None:
    """JSON within JSON: the body itself is text, what its string says is not."""
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments.city }}{% endfor %}"
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "\\ud800"}'}}
    with pytest.raises(ApiError, match="unpaired surrogate") as caught:
        await with_template(demo_model, source).chat(
            [message("assistant", "x", tool_calls=[call])], 100
        )
    assert caught.value.status == 400


async def test_a_model_without_template_has_no_chat(plain_model: ServedModel) -> None:
    with pytest.raises(ApiError, match="no chat template") as caught:
        await PromptBuilder(plain_model, num_threads=1).chat([message("user", "x")], 100)
    assert (caught.value.status, caught.value.param) == (400, "messages")


async def test_a_template_that_writes_bos_gets_no_second_one(
    byte_fallback: ByteFallbackTokenizer,
) -> None:
    # What post-processing adds belongs to raw prompts alone.
    tokenizer = byte_fallback.from_str(byte_fallback.to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    model = served_model(
        ("x",),
        tokenizer,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
        special_tokens={"bos_token": "<s>"},
    )
    builder = PromptBuilder(model, num_threads=1)
    chat = await builder.chat([message("user", "fox")], 100)
    [raw] = await builder.completions(["fox"], 100)
    assert chat.token_ids.count(1) == raw.token_ids.count(1) == 1
    [empty] = await builder.completions([""], 100)
    assert empty.token_ids == (1,)


@pytest.mark.parametrize("prompt", ["", ()])
async def test_an_empty_prompt_is_refused_where_no_bos_is_added(
    prompts: PromptBuilder, prompt: str | tuple[int, ...]
) -> None:
    with pytest.raises(ApiError, match="must not be empty"):
        await prompts.completions([prompt], 100)


async def test_texts_that_cannot_fit_are_refused_before_they_are_tokenized(
    prompts: PromptBuilder, demo_model: ServedModel
) -> None:
    size = 20 * demo_model.longest_token * 4 + 1
    for attempt in (
        prompts.completions(["x" * size], 20),
        prompts.chat([message("user", "x" * size)], 20),
    ):
        with pytest.raises(ApiError) as caught:
            await attempt
        assert caught.value.code == "context_length_exceeded"


async def test_the_event_loop_turns_while_a_prompt_is_tokenized(prompts: PromptBuilder) -> None:
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(prompts.completions(["word " * 200_000], 1_000_000))
    begin = last = loop.time()
    longest = 0.0
    while not work.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, loop.time() - last), loop.time()
    assert len((await work)[0].token_ids) >= 200_000
    # Were the interpreter locked meanwhile, one turn would last nearly as long as the whole.
    assert longest < (last - begin) * 0.7


async def test_a_final_message_is_continued_where_it_ends(prompts: PromptBuilder) -> None:
    messages = [message("user", "Count."), message("assistant", "one, two, ")]
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    prompt = await prompts.chat(messages, 8192, options)
    text = prompts_text(prompts, prompt)
    assert text.endswith("<|im_start|>assistant\none, two, ")
    whole = await prompts.chat(messages, 8192, ChatOptions(add_generation_prompt=False))
    assert prompts_text(prompts, whole).startswith(text)


async def test_a_template_that_rewrites_the_final_message_says_so(
    demo_model: ServedModel,
) -> None:
    builder = with_template(
        demo_model, "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    )
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ApiError, match="cannot be continued"):
        await builder.chat([message("assistant", "abc")], 100, options)


async def test_templates_get_the_clients_variables_but_not_their_own(
    demo_model: ServedModel,
) -> None:
    builder = with_template(
        demo_model, "{{ mood }}{{ messages | length }}{{ add_generation_prompt }}"
    )
    options = ChatOptions(template_variables={"mood": "calm", "messages": [], "eos_token": "!"})
    prompt = await builder.chat([message("user", "x")], 100, options)
    assert prompts_text(builder, prompt) == "calm1True"


async def test_long_prompts_lose_their_beginning_if_asked(prompts: PromptBuilder) -> None:
    last = EncodingOptions(keep_last=4)
    [text] = await prompts.completions(["word " * 5000 + "the end"], 100, last)
    [ids] = await prompts.completions([tuple(range(50))], 100, last)
    assert (len(text.token_ids), ids.token_ids) == (4, (46, 47, 48, 49))
    assert prompts_text(prompts, text).endswith("the end")
    chat = await prompts.chat(
        [message("user", "word " * 5000)], 100, ChatOptions(encoding=EncodingOptions(False, 7))
    )
    assert len(chat.token_ids) == 7
