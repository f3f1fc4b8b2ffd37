"""Bodies that cost a surface as much as a client can make them cost, of any size.

``tests/bench/bodies.py`` measures the same.
"""

from dataclasses import dataclass

from terrace_gateway.edge.routes import match_route
from terrace_gateway.surfaces.json_body import MAX_ITEMS, MAX_TOOLS, parse_json_object
from terrace_gateway.surfaces.request import read_request

from .surface_calls import upstream

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
PARTS = ",:[{"


@dataclass(frozen=True)
class Heavy:
    """One way to be heavy: ``unit`` again and again, between ``head`` and ``tail``."""

    path: str
    name: str
    head: str
    unit: str
    tail: str
    separator: str = ","
    most: int = MAX_BYTES
    """Units that the surface takes."""

    @property
    def id(self) -> str:
        """For the names of tests."""
        return f"{self.path}: {self.name}"

    def taken(self, values: int, share: float = 1) -> bytes:
        """As large as the limits let it pass, or a ``share`` of that."""
        return self.body(values, self.most, share)

    def body(self, values: int = MAX_BYTES, most: int = MAX_BYTES, share: float = 1) -> bytes:
        """As large as a body may be. ``#`` in a unit is its number."""
        room = MAX_BYTES - len(self.head) - len(self.tail)
        size = len((self.unit + self.separator).encode()) + (6 if "#" in self.unit else 0)
        of_one = sum(self.unit.count(mark) for mark in PARTS) + len(self.separator)
        fitting = min(room // size, most, (values - 300) // max(of_one, 1))
        count = max(1, int(fitting * share))
        units = (self.unit.replace("#", str(n)) for n in range(count))
        return f"{self.head}{self.separator.join(units)}{self.tail}".encode()


def run(heavy: Heavy, body: bytes, *, max_values: int) -> None:
    """All that the surface does with a body before it is sent. Raises ``ApiError``."""
    match = match_route("POST", heavy.path)
    assert match is not None
    source = parse_json_object(body, max_depth=MAX_DEPTH, max_values=max_values)
    request = read_request(match, source)
    assert request.needs.input_bound_tokens > 0
    request.session()
    request.with_texts(request.texts())
    model = "sim-embed" if request.surface == "embeddings" else "bedrock-claude"
    upstream(request, model)


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
MESSAGES = "/v1/messages"
CONVERSE = "/model/bedrock-claude/converse"


def everywhere(path: str, start: str) -> list[Heavy]:
    """What is heavy for any surface, in a field that it does not even take."""
    whole = [
        ("empty lists", "[", "[]", "]"),
        ("empty objects", "[", "{}", "]"),
        ("objects of one key", "[", '{"":0}', "]"),
        ("different keys", "{", '"#":0', "}"),
        ("the same key", "{", '"a":0', "}"),
        ("small numbers", "[", "1", "]"),
        ("floats", "[", "1.5e9", "]"),
        ("large integers", "[", "9" * 4000, "]"),
        ("empty texts", "[", '""', "]"),
        ("nested lists", "[", "[" * 60 + "]" * 60, "]"),
    ]
    texts = [
        ("escapes", '"', "\\u00e9", '"'),
        ("escaped quotes", '"', '\\",', '"'),
        ("wide characters", '"', "\U0001f600", '"'),
        ("JSON in a text", '"', '{\\"a\\":[1]},', '"'),
        ("digits", "0.", "7", ""),
        ("spaces", "", " ", "0"),
    ]
    found = [Heavy(path, name, start + head, unit, tail + "}") for name, head, unit, tail in whole]
    found += [Heavy(path, n, start + head, unit, tail + "}", "") for n, head, unit, tail in texts]
    return found


def chat() -> list[Heavy]:
    """Chat completions."""
    head = '{"model":"m","max_tokens":1,'
    hi = '"messages":[{"role":"user","content":"hi"}]'
    tool = f'{head}{hi},"tools":[{{"type":"function","function":{{"name":"f","parameters":'
    end = "}}]}"
    schema = f'{head}{hi},"response_format":{{"type":"json_schema","json_schema":{{"schema":'
    png = '{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}'
    call = '{"id":"i","type":"function","function":{"name":"f","arguments":""}}'
    before, ended = call.removesuffix('"}}'), '"}}]}]}'
    called = f'{head}"messages":[{{"role":"assistant","tool_calls":[{before}['
    return [
        *everywhere(CHAT, f'{head}{hi},"dropped":'),
        Heavy(CHAT, "messages", f'{head}"messages":[', '{"role":"user","content":""}', "]}",
              most=MAX_ITEMS),
        Heavy(CHAT, "blocks", f'{head}"messages":[{{"role":"user","content":[',
              '{"type":"text","text":""}', "]}]}", most=MAX_ITEMS),
        Heavy(CHAT, "messages of a block", f'{head}"messages":[',
              '{"role":"user","content":[{"type":"text","text":""}]}', "]}", most=MAX_ITEMS),
        Heavy(CHAT, "images", f'{head}"messages":[{{"role":"user","content":[', png, "]}]}",
              most=MAX_ITEMS),
        Heavy(CHAT, "calls", f'{head}"messages":[{{"role":"assistant","tool_calls":[', call, "]}]}",
              most=MAX_ITEMS),
        Heavy(CHAT, "tools", f'{head}{hi},"tools":[',
              '{"type":"function","function":{"name":"f","parameters":{}}}', "]}", most=MAX_TOOLS),
        Heavy(CHAT, "leaves", f'{tool}{{"a":[', "{}", f"]}}{end}"),
        Heavy(CHAT, "references", f'{tool}{{"a":[', '{"$ref":"a"}', f"]}}{end}"),
        Heavy(CHAT, "definitions", f'{tool}{{"$ref":"d0","$defs":{{', '"d#":{"$ref":"d0"}',
              f"}}}}{end}"),
        Heavy(CHAT, "nested definitions", f'{tool}{{"$ref":"none",' + nested_definitions(26) + "[",
              '{"$ref":"n"}', "]" + "}}" * 26 + "}" + end),
        Heavy(CHAT, "copies", f'{tool}{{"$defs":{{"a":{{}},"b":{{"$ref":"a"}}}},"x":[',
              '{"$ref":"b"}', f"]}}{end}"),
        Heavy(CHAT, "format", f'{schema}{{"a":[', '{"$ref":"a"}', "]}}}}"),
        Heavy(CHAT, "biases", f'{head}{hi},"logit_bias":{{', '"#":1', "}}"),
        Heavy(CHAT, "stops", f'{head}{hi},"stop":[', '""', "]}", most=MAX_ITEMS),
        Heavy(CHAT, "text", f'{head}"messages":[{{"role":"user","content":"', "\\n", '"}]}', ""),
        Heavy(CHAT, "text that may grow", f'{head}"messages":[{{"role":"user","content":"',
              "\u00e9", '"}]}', ""),
        Heavy(CHAT, "combining marks", f'{head}"messages":[{{"role":"user","content":"',
              "\u0327\u0301", '"}]}', ""),
        Heavy(CHAT, "arguments", called, "{}", f"]{ended}"),
        Heavy(CHAT, "texts in arguments", called, '\\"\\"', f"]{ended}"),
    ]  # fmt: skip


def nested_definitions(levels: int) -> str:
    """Definitions that hold each other; each name ends with an object that is left open."""
    return "".join(f'"$defs":{{"d{n}":{{' for n in range(levels)) + '"x":'


def completions() -> list[Heavy]:
    """Legacy completions."""
    head = '{"model":"m","max_tokens":1,'
    return [
        *everywhere(COMPLETIONS, f'{head}"prompt":"hi","dropped":'),
        Heavy(COMPLETIONS, "text", f'{head}"prompt":"', "\\n", '"}', ""),
        Heavy(COMPLETIONS, "prompts", f'{head}"prompt":[', '""', "]}", most=1),
        Heavy(COMPLETIONS, "stops", f'{head}"prompt":"hi","stop":[', '""', "]}", most=MAX_ITEMS),
    ]


def responses() -> list[Heavy]:
    """OpenAI's responses."""
    head = '{"model":"m","max_output_tokens":1,'
    tool = f'{head}"input":"hi","tools":[{{"type":"function","name":"f","parameters":{{"a":['
    part = '{"type":"input_text","text":""}'
    return [
        *everywhere(RESPONSES, f'{head}"input":"hi","dropped":'),
        Heavy(RESPONSES, "items", f'{head}"input":[', '{"role":"user","content":""}', "]}",
              most=MAX_ITEMS),
        Heavy(RESPONSES, "parts", f'{head}"input":[{{"role":"user","content":[', part, "]}]}",
              most=MAX_ITEMS),
        Heavy(RESPONSES, "outputs",
              f'{head}"input":[{{"type":"function_call_output","call_id":"c","output":[',
              part, "]}]}", most=MAX_ITEMS),
        Heavy(RESPONSES, "summaries",
              f'{head}"input":[{{"type":"reasoning","id":"rs_1","summary":[',
              '{"text":""}', "]}]}", most=MAX_ITEMS),
        Heavy(RESPONSES, "tools", f'{head}"input":"hi","tools":[',
              '{"type":"function","name":"f"}', "]}", most=MAX_TOOLS),
        Heavy(RESPONSES, "leaves", tool, "{}", "]}}]}"),
        Heavy(RESPONSES, "references", tool, '{"$ref":"a"}', "]}}]}"),
        Heavy(RESPONSES, "includes", f'{head}"input":"hi","include":[',
              '"reasoning.encrypted_content"', "]}", most=MAX_ITEMS),
    ]  # fmt: skip


def embeddings() -> list[Heavy]:
    """Embeddings."""
    head = '{"model":"m",'
    return [
        *everywhere(EMBEDDINGS, f'{head}"input":"hi","dropped":'),
        Heavy(EMBEDDINGS, "text", f'{head}"input":"', "\\n", '"}', ""),
        Heavy(EMBEDDINGS, "inputs", f'{head}"dimensions":16,"input":[', '"a"', "]}", most=2048),
    ]


def messages() -> list[Heavy]:
    """Anthropic's messages."""
    head = '{"model":"m","max_tokens":1,'
    hi = '"messages":[{"role":"user","content":"hi"}]'
    blocks = f'{head}"messages":[{{"role":"user","content":['
    use = '{"type":"tool_use","id":"i","name":"f","input":{"a":['
    result = '{"type":"tool_result","tool_use_id":"i","content":['
    text = '{"type":"text","text":""}'
    marked = '{"type":"text","text":"","cache_control":{"type":"ephemeral"}}'
    tool = f'{head}{hi},"tools":[{{"name":"f","input_schema":{{"a":['
    return [
        *everywhere(MESSAGES, f'{head}{hi},"dropped":'),
        Heavy(MESSAGES, "messages", f'{head}"messages":[', '{"role":"user","content":"#"}', "]}",
              most=MAX_ITEMS),
        Heavy(MESSAGES, "messages of a block", f'{head}"messages":[',
              '{"role":"user","content":[{"type":"text","text":""}]}', "]}", most=MAX_ITEMS),
        Heavy(MESSAGES, "blocks", blocks, text, "]}]}", most=MAX_ITEMS),
        Heavy(MESSAGES, "cache marks", blocks, marked, "]}]}", most=MAX_ITEMS),
        Heavy(MESSAGES, "results", blocks, f"{result}{text}]}}", "]}]}", most=MAX_ITEMS),
        Heavy(MESSAGES, "blocks of a result", blocks + result, text, "]}]}]}", most=MAX_ITEMS),
        Heavy(MESSAGES, "leaves of a call",
              f'{head}"messages":[{{"role":"assistant","content":[{use}', "{}", "]}}]}]}"),
        Heavy(MESSAGES, "system", f'{head}{hi},"system":[', marked, "]}", most=MAX_ITEMS),
        Heavy(MESSAGES, "tools", f'{head}{hi},"tools":[', '{"name":"f","input_schema":{}}', "]}",
              most=MAX_TOOLS),
        Heavy(MESSAGES, "leaves", tool, "{}", "]}}]}"),
        Heavy(MESSAGES, "references", tool, '{"$ref":"a"}', "]}}]}"),
        Heavy(MESSAGES, "stops", f'{head}{hi},"stop_sequences":[', '""', "]}", most=MAX_ITEMS),
    ]  # fmt: skip


def converse() -> list[Heavy]:
    """Bedrock's converse."""
    hi = '{"messages":[{"role":"user","content":[{"text":"hi"}]}]'
    blocks = '{"messages":[{"role":"user","content":['
    result = '{"toolResult":{"toolUseId":"i","content":['
    spec = '{"toolSpec":{"name":"f","inputSchema":{"json":'
    return [
        *everywhere(CONVERSE, f'{hi},"dropped":'),
        Heavy(CONVERSE, "messages", '{"messages":[', '{"role":"user","content":[]}', "]}",
              most=MAX_ITEMS),
        Heavy(CONVERSE, "blocks", blocks, '{"text":""}', "]}]}", most=MAX_ITEMS),
        Heavy(CONVERSE, "cache points", blocks,
              '{"cachePoint":{"type":"default"}}', ']}]}', most=MAX_ITEMS),
        Heavy(CONVERSE, "results", blocks, result + '{"text":""}]}}', "]}]}", most=MAX_ITEMS),
        Heavy(CONVERSE, "blocks of a result", blocks + result, '{"text":""}', "]}}]}]}",
              most=MAX_ITEMS),
        Heavy(CONVERSE, "leaves of a result", blocks + result + '{"json":[', "{}", "]}]}}]}]}"),
        Heavy(CONVERSE, "leaves of a call",
              blocks + '{"toolUse":{"toolUseId":"i","name":"f","input":[', "{}", "]}}]}]}"),
        Heavy(CONVERSE, "tools", f'{hi},"toolConfig":{{"tools":[', spec + "{}}}}", "]}}",
              most=MAX_TOOLS),
        Heavy(CONVERSE, "leaves", f'{hi},"toolConfig":{{"tools":[{spec}[', "{}", "]}}}]}}"),
        Heavy(CONVERSE, "stops", f'{hi},"inferenceConfig":{{"stopSequences":[', '""', "]}}",
              most=MAX_ITEMS),
    ]  # fmt: skip


EVERY = [*chat(), *completions(), *responses(), *embeddings(), *messages(), *converse()]
