// The tools that a request offers, as far as the answer's reader needs them: their names, and which arguments are
// text by their schema.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::model::answer {

struct Tool {
  std::string name;
  // The schema's properties in their order; true if the value's type is only string.
  std::vector<std::pair<std::string, bool>> parameters;
  // The JSON text of `parameters`, for values within values; null if the tool has none.
  std::shared_ptr<const std::string> schema = nullptr;
};

// What a schema says about the type of a value, and of the members and items in it. Where it says nothing, text(),
// list() and object() return false.
class ValueSchema {
 public:
  ValueSchema() = default;
  // The schema of the tool's argument `key`.
  ValueSchema(const Tool& tool, std::string_view key);

  bool text() const;    // only a string is allowed
  bool list() const;    // of arrays and objects only an array is allowed
  bool object() const;  // of arrays and objects only an object is allowed
  ValueSchema member(std::string_view name) const;
  ValueSchema item() const;

 private:
  struct Document;
  ValueSchema within(const void* schema) const;
  bool allows(std::string_view type) const;
  std::shared_ptr<Document> document_;
  const void* schema_ = nullptr;  // in the document; null: unknown
};

// How a text that may still grow compares with the offered names.
enum class NameFit { kNone, kBeginning, kWhole };

class Tools {
 public:
  Tools() = default;
  explicit Tools(std::vector<Tool> tools) : tools_(std::move(tools)) {}

  // Reads the JSON text of a request's `tools` (OpenAI's shape); empty text or null: no tools are offered.
  // kInvalidArgument names what is wrong.
  static Result<Tools> from_json(std::string_view json);

  bool empty() const { return tools_.empty(); }
  const std::vector<Tool>& all() const { return tools_; }
  const Tool* find(std::string_view name) const;
  // kWhole: the text is an offered name, and may also be the beginning of a longer one.
  NameFit fit(std::string_view text) const;

 private:
  std::vector<Tool> tools_;
};

// Returns whether the value of `key` is text whatever it looks like.
bool text_alone(const Tool& tool, std::string_view key);

}  // namespace bulkhead::model::answer
