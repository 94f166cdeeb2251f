// Requests to the server that this page came from: the key, errors in words, and streams of events.
import { askForKey } from "./dialogs.js";

const kKeyName = "bulkhead.key";

function storedKey() {
  try {
    return sessionStorage.getItem(kKeyName) ?? localStorage.getItem(kKeyName) ?? "";
  } catch {
    return "";  // storage is switched off: the key lives as long as the page
  }
}

let key = storedKey();
let refused = false;
let asking = null;  // one question at a time, whoever needs the answer

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Whether the server has asked for a key, or one is in use.
export const wantsKey = () => key !== "" || refused;

export const keyInUse = () => key;

// Asks for the key, once for all who wait. False: the reader gave none.
export function changeKey(words) {
  asking ??= askForKey(words).then((answer) => {
    asking = null;
    if (answer === null) return false;
    key = answer.key;
    try {
      sessionStorage.setItem(kKeyName, key);
      if (answer.keep) localStorage.setItem(kKeyName, key);
      else localStorage.removeItem(kKeyName);
    } catch {
      // kept in `key` alone
    }
    return true;
  });
  return asking;
}

async function errorOf(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    const body = await response.json();
    if (typeof body.error?.message === "string") message = body.error.message;
  } catch {
    // not the API's form of an error: the status has to do
  }
  return new ApiError(response.status, message);
}

// The response, if its status is 2xx; else an ApiError is thrown. `quiet`: a missing key is an error, not
// a question.
export async function request(path, { method = "GET", body, signal, quiet = false } = {}) {
  for (;;) {
    const sent = key;
    const headers = {};
    if (sent) headers.Authorization = `Bearer ${sent}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method, headers, signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (response.ok) return response;
    if (response.status === 401) refused = true;
    if (response.status === 401 && !quiet) {
      if (key !== sent) continue;  // somebody else has been given one meanwhile
      const words = sent ? "The server does not take this key." : "This server asks for its API key.";
      if (await changeKey(words)) continue;
    }
    throw await errorOf(response);
  }
}

export const getJson = async (path, options) => (await request(path, options)).json();
export const getText = async (path, options) => (await request(path, options)).text();

// The data of each server-sent event of a response, as text.
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let buffered = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffered += decoder.decode(value, { stream: true });
      for (let end; (end = buffered.indexOf("\n\n")) >= 0; buffered = buffered.slice(end + 2)) {
        const lines = buffered.slice(0, end).split("\n");
        const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length > 0) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
