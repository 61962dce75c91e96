import pytest

from dualpace.core.errors import CheckpointError
from dualpace.gateway.text import chat_template
from dualpace.gateway.text.chat_template import (
    ChatTemplate,
    TemplateRefusalError,
    TemplateTooLongError,
)


def render(source: str, *contents: str, **special: str) -> str:
    messages = [{"role": "user", "content": content} for content in contents]
    return ChatTemplate(source, special).render(messages, max_characters=10_000)


def test_blocks_take_no_lines_of_their_own() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source, "a", "b") == "a\nb\n"


def test_templates_see_what_transformers_gives_them() -> None:
    source = (
        "{{ bos_token }}|{{ tools is none }}|{{ documents is none }}|{{ add_generation_prompt }}|"
        "{{ eos_token is defined }}"
    )
    assert render(source, bos_token="<s>") == "<s>|True|True|True|False"


def test_json_is_not_escaped_for_html_nor_for_ascii() -> None:
    assert render("{{ messages[0] | tojson }}", "<é> & '") == (
        '{"role": "user", "content": "<é> & \'"}'
    )
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}") == (
        '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'
    )


def test_loop_controls_and_the_generation_tag_are_known() -> None:
    source = (
        "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}"
        "{% if loop.index == 4 %}{% break %}{% endif %}"
        "{% generation %}{% set x = m.content %}[{{ x }}]{% endgeneration %}{% endfor %}"
    )
    assert render(source, "a", "b", "c", "d", "e") == "[a][c]"


def test_the_date_can_be_told() -> None:
    assert render("{{ strftime_now('%Y')|int > 2024 }}") == "True"


def test_a_refusal_of_the_template_carries_its_words() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateRefusalError, match="roles must alternate"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.further }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages[7].role }}{{ messages[7].role.upper() }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages | sum(attribute='content') }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_whatever_fails_within_a_template_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefusalError, match="chat template"):
        render(source, "x")


def test_a_template_that_does_not_parse_is_an_error_of_the_model() -> None:
    with pytest.raises(CheckpointError, match=r"line 2"):
        ChatTemplate("a\n{% if %}", {})


def test_the_text_has_a_longest_size() -> None:
    source = "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}"
    with pytest.raises(TemplateTooLongError, match="10000 characters"):
        render(source, "x" * 100)


def test_rendering_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_DEADLINE_S", 0.05)
    source = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{{ i }}{% endfor %}"
    with pytest.raises(TemplateRefusalError, match=r"longer than 0\.05 s"):
        render(source)


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(TemplateRefusalError):
        render("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateRefusalError):
        render("{% for i in range(10 ** 9) %}{% endfor %}")
