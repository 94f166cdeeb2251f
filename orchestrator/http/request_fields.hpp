// Reads a request's JSON object field by field: limits before a parser runs, types, ranges, and the first error in
// OpenAI's words. Only for the sources that parse requests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

inline constexpr std::size_t kMaxNameBytes = 256;  // of a function

ApiError invalid(std::string message, std::string parameter = "", std::string code = "");

// Refuses a body that is not a JSON object, nests too deeply or has too many values.
Parsed<nlohmann::json> parse_object(std::string_view body);

// Returns whether the value is this text. The library's own comparison with a literal makes a value of the literal in a
// function that may not throw: if there is no memory for it, the process ends.
template <typename Json>
bool is_text(const Json& value, std::string_view text) {
  return value.is_string() && value.template get_ref<const std::string&>() == text;
}

// Returns whether the value is null, "", [] or {}.
bool is_empty(const nlohmann::json& value);

// Ordered objects search a member one by one, so looking up each member of an object costs the square of its size.
// parse_exact() and pass_on() avoid that; readers of schemas and tools may not. Small objects cost nothing here. One
// object may have kMaxOrderedMembers members; several large ones may have fewer each.
inline constexpr std::size_t kSmallObjectMembers = 512;
inline constexpr std::size_t kMaxOrderedMembers = 4096;
// Returns whether objects in the value are too large to keep their members in order.
bool has_wide_objects(const nlohmann::json& value);
// Returns "has objects of too many members ...", which names the widest object in the value.
std::string too_many_members(const nlohmann::json& value);
// Parses the body of a request in another protocol, and keeps its members in order and its integers exact
// (exact_json.hpp). Checks it like parse_object(), and refuses it if has_wide_objects().
Parsed<nlohmann::ordered_json> parse_ordered_object(std::string_view body);

// Copies the members of a request in another protocol to the chat `out`, except those in `own`, which the translator
// reads itself. So the parser of chats honours or refuses every member that would change an answer, and overlooks
// none.
void pass_on(const nlohmann::ordered_json& body, std::span<const std::string_view> own,
             nlohmann::ordered_json& out);

// The base of classes that translate a request of another protocol into a chat. It reads members by name and keeps
// the first error.
class Translating {
 protected:
  using Ordered = nlohmann::ordered_json;

  void refuse(const std::string& name, const std::string& what,
              const std::string& code = "invalid_type");
  // Returns null if the member is absent or null.
  static const Ordered* find(const Ordered& object, const char* name);
  // Returns an empty text if the member is absent or not a string.
  static std::string text_of(const Ordered& object, const char* name);
  // Refuses a function's name that is empty or too long. `where` is the object that has the name.
  void check_name(const std::string& name, const std::string& where);

  std::optional<ApiError> error_;
};

// Reads the fields of one object and keeps the first error.
class Fields {
 public:
  using json = nlohmann::json;

  explicit Fields(const json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Returns null if the member is absent or null.
  const json* get(const char* name) const;
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }
  void refuse(const std::string& name, const std::string& what, const std::string& code = "");
  void wrong_type(const std::string& name, const char* wanted, const json& value);

  // Returns `fallback` for an absent field.
  bool boolean(const char* name, bool fallback);
  float number(const char* name, float fallback, double least, double most);
  std::int64_t integer(const char* name, std::int64_t fallback, std::int64_t least,
                       std::int64_t most);
  std::string text(const char* name, std::string fallback = "");

  // Accepts 1 and 1.0, because some clients write every number as a float.
  static std::optional<std::int64_t> whole_number(const json& value);

 private:
  const json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// Reads the token ids of an array; returns false after a refusal.
bool read_ids(Fields& fields, const char* name, const nlohmann::json& array,
              std::vector<ipc::TokenId>& ids);

// ---- parts of a generation's request, each in its own source ----

// Reads what completions and chats have in common (sampling_request.cpp).
void read_common(Fields& fields, GenerationRequest& request);
// Refuses a least number of tokens. Programs that measure servers send one beside `ignore_eos`. It is accepted where
// nothing ends the answer before its most tokens: no stop, no constraint and no choice of a tool. Call it when all of
// these have been read.
void refuse_least_tokens(Fields& fields, const ipc::Submit& parameters);
// Reads the required form of the answer: `response_format`, `grammar`, `regex`, and the names that llama.cpp and vLLM
// have for them (constraint_request.cpp). `body` is the text from which `fields` was parsed. The worker decides
// whether a schema, grammar or expression can be enforced.
void read_constraint(Fields& fields, std::string_view body, ipc::Constraint& constraint);
// Reads and checks a chat, and returns what its template reads as one JSON object (chat_request.cpp). `body` is the
// text from which `fields` was parsed.
std::string read_chat(Fields& fields, std::string_view body);
// Reads which tools the answer must call. Call it after read_chat() (chat_request.cpp).
void read_tool_choice(Fields& fields, ipc::Submit& parameters);
// Reads the names that other servers have for a template's settings about reasoning. Returns the members to add to
// the chat, each with a comma before it (reasoning_request.cpp).
std::string reasoning_members(Fields& fields);
// Returns whether the client asks for the answer without its reasoning (reasoning_request.cpp).
bool hides_reasoning(Fields& fields);
// Returns the bit of Submit::open_samplers for this field; 0: there is none. For parsers that put in another API's
// default where the request names no value.
std::uint32_t open_sampler(std::string_view name);
// Reads how many reasoning tokens the answer may have; -1: no limit (reasoning_request.cpp).
void read_reasoning_budget(Fields& fields, ipc::Submit& parameters);
// Refuses fields that can't be combined with an answer that must be a call. Call it after all other members have been
// read.
void refuse_beside_tool_choice(Fields& fields, const ipc::Submit& parameters);

}  // namespace bulkhead::orchestrator
