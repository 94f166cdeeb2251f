// The orders that tell the scripted worker what to do: words in the prompt, and FAKE_* in its environment
// (fake_worker.cpp).
//
// These words in the prompt are orders:
//   warn            the worker accepts with a warning
//   slow            a token every 5 ms (otherwise as fast as the ring takes them)
//   never           the worker accepts, and never answers
//   big             4 KiB of text for each token
//   eos@N           ends with "stop" before token N
//   cached@N        says that N of the prompt's tokens came from its cache; with accepted tokens it says more than the
//                   prompt has
//   kill@N exit@N device@N hang@N gap@N garbage@N lie@N
//                   does this when token N is due, unless the process was given token N-1 as accepted. device@N exits
//                   like a worker that has lost its device, without a message; lie@N leaves garbage and dies at once
//   grows@N         reports that its KV cache has grown by N MiB
//   halfway@N       dies once it has reported N tokens of its prompt, and creates the file FAKE_HOLD; does nothing if
//                   the file exists
//   hold@N          waits before token N for as long as the file that FAKE_HOLD names exists; an input to embed waits
//                   for that, too
//   poison          crashes the process as soon as it sees the order
//   toolong refused fails with that error
//   fits@N          fails as too long if the prompt has more than N tokens
//   scribble        writes escape sequences to stderr
//   flood           from then on writes lines to stderr without end
//   endless         from then on writes a single line to stderr, which never ends
//   truncate        ftruncate(2, 0)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ipc/messages.hpp"

namespace bulkhead::test {

// Returns the variable's value; empty if it is not set.
std::string environment(const char* name);

// Returns N of "word@N" in the prompt, or nothing.
std::optional<std::uint32_t> order(const std::string& prompt, const std::string& word);

// Renders each message as "role: content".
std::string rendered(const ipc::ChatPrompt& chat);

// Carries out the prompt's orders about stderr: scribble, truncate, flood, endless.
void misuse_log(const std::string& prompt);

[[noreturn]] void die_by_signal();
// Ends the process. `start` is how many processes were started before it; with FAKE_DIE_BY_SIGNALS each one dies by
// another signal.
[[noreturn]] void die_while_loading(std::size_t start);

}  // namespace bulkhead::test
