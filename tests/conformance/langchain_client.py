"""LangChain's ChatOpenAI against a served node: chat, stream, tools, structured output, usage.

    python3 -m venv build/langchain && build/langchain/bin/pip install langchain-openai
    make serve PORT=8000 &
    build/langchain/bin/python tests/conformance/langchain_client.py http://127.0.0.1:8000/v1

Runs in an environment of its own: nothing of LangChain is needed by DualPace. Exits with 1 at the
first thing that is not as LangChain expects it.
"""

import asyncio
import sys
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, SecretStr

QUESTION = [SystemMessage("Be brief."), HumanMessage("What is the capital of France?")]


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"rain in {city}"


WEATHER = tool(weather)


def chat_model(url: str, **options: Any) -> ChatOpenAI:
    """Return the client, set up as its documentation says for any OpenAI-compatible server."""
    return ChatOpenAI(
        base_url=url, api_key=SecretStr("none"), model=model_name(url), temperature=0, **options
    )


def model_name(url: str) -> str:
    """Return the name of the served model."""
    import openai  # noqa: PLC0415 - of this script's own environment

    return openai.OpenAI(base_url=url, api_key="none").models.list().data[0].id


def chat(url: str) -> None:
    """Whole, streamed, in batches and from an event loop: one text, with usage."""
    model = chat_model(url, max_tokens=16, stream_usage=True)
    whole = model.invoke(QUESTION)
    assert "Paris" in whole.content, whole
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["finish_reason"] == "stop"
    chunks = list(model.stream(QUESTION))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content
    told = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert told and told[-1]["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert [answer.content for answer in model.batch([QUESTION] * 3)] == [whole.content] * 3
    assert asyncio.run(model.ainvoke(QUESTION)).content == whole.content


def options(url: str) -> None:
    """Stop strings, log-probabilities, several choices, seeds."""
    stopped = chat_model(url).invoke("Count: 1, 2, 3,", stop=["5"])
    assert "5" not in str(stopped.content)
    scored = chat_model(url, max_tokens=4).bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert len(scored.response_metadata["logprobs"]["content"]) > 0
    several = chat_model(url, max_tokens=4, n=2).generate([list(QUESTION)])
    assert len(several.generations[0]) == 2
    seeded = chat_model(url, max_tokens=8, seed=3)
    assert seeded.invoke("Hi").content == seeded.invoke("Hi").content


def tools(url: str) -> None:
    """A call that is forced, whole and streamed, and its result in the conversation."""
    model = chat_model(url, max_tokens=64)
    forced = model.bind_tools([WEATHER], tool_choice="weather")
    answer = forced.invoke("How is the weather in Paris?")
    assert isinstance(answer, AIMessage)
    [call] = answer.tool_calls
    assert call["name"] == "weather" and set(call["args"]) == {"city"}
    total = None
    for chunk in forced.stream("How is the weather in Paris?"):
        total = chunk if total is None else total + chunk
    assert total is not None
    assert [c["args"] for c in total.tool_calls] == [call["args"]]
    asked = HumanMessage("How is the weather in Paris?")
    result = ToolMessage(WEATHER.invoke(call["args"]), tool_call_id=call["id"])
    assert model.bind_tools([WEATHER], tool_choice="none").invoke([asked, answer, result]).content


def structured_output(url: str) -> None:
    """Each way that LangChain knows to get an object."""
    for method in ("json_schema", "function_calling"):
        model = chat_model(url, max_tokens=64).with_structured_output(City, method=method)
        assert isinstance(model.invoke("Tell of Paris."), City), method
    loose = chat_model(url, max_tokens=128).with_structured_output(method="json_mode")
    assert isinstance(loose.invoke("Tell of Paris as JSON, briefly: {name, country}."), dict)


def text_completion(url: str) -> None:
    """The client of the older route."""
    model = OpenAI(
        base_url=url, api_key=SecretStr("none"), model=model_name(url), max_tokens=4, temperature=0
    )
    whole = model.invoke("The capital of France is")
    assert "Paris" in whole, whole
    assert "".join(model.stream("The capital of France is")) == whole


def responses(url: str) -> None:
    """LangChain's use of /v1/responses, where nothing is stored."""
    model = chat_model(url, max_tokens=16, use_responses_api=True, store=False)
    assert "Paris" in str(model.invoke(QUESTION).text)
    assert "Paris" in "".join(str(chunk.text) for chunk in model.stream(QUESTION))


def main() -> None:
    """Run everything."""
    [url] = sys.argv[1:]
    for check in (chat, options, tools, structured_output, text_completion, responses):
        check(url)
        print(f"{check.__name__}: fine", flush=True)


if __name__ == "__main__":
    main()
