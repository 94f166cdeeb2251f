// Takes any bytes as a chat template and renders it with a conversation. The result must be valid UTF-8 or an error,
// within the limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "worker/model/template/json.hpp"
#include "worker/model/template/template.hpp"
#include "worker/model/unicode.hpp"

namespace {

constexpr std::string_view kVariables = R"({"messages": [
  {"role": "user", "content": "a\u00e9 <|im_end|> \ud83d\ude00 "},
  {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
   "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null], "z": 123456789012345678901}}}]},
  {"role": "tool", "content": "ok"}],
  "tools": [{"type": "function", "function": {"name": "f"}}], "bos_token": "<s>", "n": 3})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bulkhead::jinja;
  const auto parsed = Template::parse({reinterpret_cast<const char*>(data), size});
  if (!parsed.ok()) return 0;
  Limits limits;
  limits.steps = 20'000;
  limits.memory_bytes = 4U << 20;
  const auto made = parsed.value().render(
      {}, 0,
      [](Interpreter& run) {
        const Value given = read_json(run, kVariables, Origin::kUser);
        for (const Dict::Entry& entry : given.as_dict()->entries)
          run.define(entry.key.as_text()->view(), entry.value);
      },
      limits);
  if (!made.ok()) return 0;
  for (const Piece& piece : made.value())
    if (!bulkhead::model::valid_utf8(piece.text)) std::abort();
  return 0;
}
