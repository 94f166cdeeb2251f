"""check.py [--answers N] [--tokens T] BIN: starts BIN/bulkheadd on the built-in model, asks for N answers of at most T
tokens at temperature 1.5 to each schema of the fixtures, and validates them with Python's jsonschema.

An answer must be JSON and valid, or say that max_tokens cut it. A schema may be refused, if the error names a keyword
of it. Exit code 77 (skipped) where jsonschema or the fixtures are missing.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

REFUSED_AT_MOST = 1


def fixtures():
    here = pathlib.Path(__file__).resolve().parents[3]
    return pathlib.Path(os.environ.get("BULKHEAD_FIXTURES", here / "../shared/fixtures")) / "schemas"


def start(folder):
    daemon = subprocess.Popen([f"{folder}/bulkheadd", "--set", "server.port=0", "--set", "server.request_timeout_s=600"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = []
    threading.Thread(target=lambda: log.extend(daemon.stderr), daemon=True).start()
    for line in daemon.stdout:
        if line.startswith("listening on "):
            return daemon, line.split()[-1], log
    sys.exit("bulkheadd ended before it was ready:\n" + "".join(log))


def ask(url, schema, answers, tokens, seed):
    body = {"prompt": "Once upon a time", "n": answers, "temperature": 1.5, "max_tokens": tokens, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return 200, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def keywords(schema):
    if isinstance(schema, dict):
        return set(schema).union(*map(keywords, schema.values()))
    return set().union(*map(keywords, schema)) if isinstance(schema, list) else set()


def check(name, fixture, url, answers, tokens, seen):
    import jsonschema

    schema = fixture["schema"]
    status, body = ask(url, schema, answers, tokens, sum(map(ord, name)))
    if status == 400 and any(f'"{word}"' in body["error"]["message"] for word in keywords(schema)):
        seen["refused"] += 1
        return []
    if status != 200:
        return [f"{name}: {status} {body}"]
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    faults = []
    for choice in body["choices"]:
        if choice["finish_reason"] == "length":
            seen["cut"] += 1
            continue
        seen["whole"] += 1
        try:
            validator.validate(json.loads(choice["text"]))
        except (ValueError, jsonschema.ValidationError) as error:
            faults.append(f"{name}: {choice['text']!r}: {str(error).splitlines()[0]}")
    return faults


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--answers", type=int, default=20)
    arguments.add_argument("--tokens", type=int, default=160)
    arguments.add_argument("folder")
    options = arguments.parse_args()
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        print("skipped: python3-jsonschema is missing (tools/install-deps test)")
        return 77
    files = sorted(fixtures().glob("*.json"))
    if not files:
        print(f"skipped: no schemas at {fixtures()}; set BULKHEAD_FIXTURES")
        return 77
    daemon, url, log = start(options.folder)
    seen = {"whole": 0, "cut": 0, "refused": 0}
    faults = []
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda file: check(file.stem, json.loads(file.read_text()), url, options.answers,
                                                     options.tokens, seen), files):
                faults += found
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
    print(f"{len(files)} schemas: {seen['whole']} whole answers, {len(faults)} of them invalid, {seen['cut']} cut, {seen['refused']} schemas refused")
    if seen["refused"] > REFUSED_AT_MOST:
        faults.append("too many schemas are refused")
    if seen["whole"] < len(files) * options.answers / 3:
        faults.append("most answers are cut: nothing was tried")
    print("\n".join(faults))
    if faults:
        print("".join(log[-20:]))
    return 1 if faults or daemon.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
