"""The clients of tools/chaos: they send requests of every kind, read the answers, and check them."""
import http.client
import json
import os
import socket
import time

PATIENCE_S = 120  # the longest wait for one answer

PROMPTS = ["Once upon a time", "The little robot", "A cat and a dog went to the sea and"]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


# ---- requests ----

def requests(shorter):
    """Returns the variants of each kind of request by the kind's name, at a fraction of their usual length."""
    def completion(prompt, tokens, **more):
        return COMPLETIONS, {"prompt": prompt, "max_tokens": tokens // shorter, "temperature": 0, "stream": True,
                             "return_token_ids": True, **more}

    sampled = {"temperature": 0.9, "top_p": 0.95, "logprobs": 2}
    odd = {"temperature": 1.2, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1, "presence_penalty": 0.3}
    chat = {"temperature": 0.7, "stream": True, "return_token_ids": True, "logprobs": True, "top_logprobs": 2,
            "max_tokens": 60 // shorter}
    return {
        "greedy": [completion(p, 80 + 40 * i, logprobs=1, ignore_eos=True) for i, p in enumerate(PROMPTS)],
        "sampled": [completion(p, 80 + 40 * i, seed=i, ignore_eos=True, **sampled) for i, p in enumerate(PROMPTS)],
        "long": [completion(p, 400, seed=3, temperature=0.8, ignore_eos=True) for p in PROMPTS[:2]],
        "stop string": [completion(p, 120, seed=11, stop=[". The", "!"], **odd) for p in PROMPTS],
        "two choices": [completion(PROMPTS[0], 50, seed=5, n=2, **sampled)],
        "chat": [(CHAT, {**chat, "seed": i, "messages": [{"role": "user", "content": text}]})
                 for i, text in enumerate(["What is your name?", "Tell me a story about a fish."])],
        "not streamed": [(COMPLETIONS, {**completion(PROMPTS[1], 60, seed=9, **sampled)[1], "stream": False})],
        "slow reader": [completion(PROMPTS[2], 100, seed=7, ignore_eos=True, **sampled)],
        "resumable": [completion(p, 60, seed=20 + i, ignore_eos=True, resumable=True, **sampled)
                      for i, p in enumerate(PROMPTS)],
        "cancelled": [completion(PROMPTS[0], 300, seed=8, temperature=0.8, ignore_eos=True)],
    }


WEIGHTS = {"greedy": 3, "sampled": 3, "long": 1, "stop string": 2, "two choices": 1, "chat": 2,
           "not streamed": 2, "slow reader": 1, "resumable": 2, "cancelled": 2, "malformed": 1}

MALFORMED = [
    (COMPLETIONS, b'{"prompt":'), (COMPLETIONS, b'{"prompt":5,"max_tokens":"x"}'),
    (COMPLETIONS, b'{"prompt":"x","temperature":-5}'), (COMPLETIONS, b"\xff\xfe\x00"),
    (CHAT, b'{"messages":"hello"}'), (CHAT, b"[]"), ("/v1/nothing", b"{}"),
    (COMPLETIONS, json.dumps({"prompt": "the cat sat on the mat. " * 20000}).encode()),
]


class Lost(Exception):
    """The client got no answer, or an answer without its end."""


class Later(Exception):
    """The daemon answered 503 with Retry-After at once: it can't serve the request now."""


class Answer:
    """What a client was told, regardless of how the daemon cut it into events."""

    def __init__(self):
        self.choices = {}
        self.longest_pause = 0.0

    def add(self, choice):
        into = self.choices.setdefault(choice["index"], {"text": "", "ids": [], "logprobs": [], "finish": None})
        said = choice.get("delta") or choice.get("message") or choice
        into["text"] += said.get("text") or said.get("content") or ""
        into["ids"] += choice.get("token_ids") or []
        logprobs = choice.get("logprobs")
        if logprobs and "content" in logprobs:
            into["logprobs"] += logprobs["content"]
        elif logprobs:
            into["logprobs"] += list(zip(logprobs["tokens"], logprobs["token_logprobs"],
                                         logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"]),
                                         logprobs["text_offset"]))
        into["finish"] = choice.get("finish_reason") or into["finish"]

    def begins(self, whole):
        """Says whether this is a prefix of the whole answer; the client may have broken it off."""
        return all(whole.choices[i]["text"].startswith(mine["text"])
                   and whole.choices[i]["ids"][:len(mine["ids"])] == mine["ids"]
                   for i, mine in self.choices.items())


def post(port, path, body, on_connection=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    if on_connection:
        connection.connect()
        on_connection(connection.sock)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def ask(port, request, slow=False, hang_up_after=None):
    """Sends a request and reads its answer. hang_up_after: the client goes after so many pieces."""
    path, body = request
    answer = Answer()
    connection = None
    try:
        narrow = (lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)) if slow else None
        connection, response = post(port, path, json.dumps(body), narrow)
        if response.status == 503 and response.getheader("Retry-After"):
            raise Later
        if response.status != 200:
            raise Lost(f"status {response.status}: {response.read(2000).decode(errors='replace')}")
        if not body["stream"]:
            for choice in json.loads(response.read())["choices"]:
                answer.add(choice)
            return answer
        pieces, last = 0, time.monotonic()
        while True:
            line = response.readline()
            now = time.monotonic()
            answer.longest_pause, last = max(answer.longest_pause, now - last if pieces else 0), now
            if not line:
                raise Lost("the stream ended without [DONE]")
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return answer
            event = json.loads(line[6:])
            if "error" in event:
                raise Lost(f"error event: {json.dumps(event['error'])}")
            for choice in event["choices"]:
                answer.add(choice)
            pieces += 1
            if slow and pieces % 10 == 0:
                time.sleep(0.2)
                last = time.monotonic()
            if hang_up_after is not None and pieces >= hang_up_after:
                return answer
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
    finally:
        if connection:
            connection.close()


def send_malformed(port, draw):
    """Returns None if the daemon did what it should, else what it did."""
    way = draw.randrange(len(MALFORMED) + 2)
    try:
        if way >= len(MALFORMED):  # sends half a request and goes
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
                half = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{\"pro"
                client.sendall(half if way == len(MALFORMED) else os.urandom(64))
            return None
        path, body = MALFORMED[way]
        connection, response = post(port, path, body)
        response.read()
        connection.close()
        return None if 400 <= response.status < 500 else f"status {response.status} for {path} {body[:60]!r}"
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def difference(answer, whole):
    for index, right in whole.choices.items():
        mine = answer.choices.get(index)
        if mine is None:
            return f"choice {index} is missing"
        for key, value in right.items():
            if mine[key] != value:
                at = next((i for i, (a, b) in enumerate(zip(mine[key], value)) if a != b), None) \
                    if hasattr(value, "__len__") and mine[key] is not None else None
                return f"choice {index}, {key}, from {at}: {str(mine[key])[-200:]} is not {str(value)[-200:]}"
    return None
