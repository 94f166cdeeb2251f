// The tools that a request offers, as far as reading an answer needs them: their names, and which
// arguments are text by their schema.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::model::answer {

struct Tool {
  std::string name;
  // The schema's properties in their order, and whether a value's type is string alone.
  std::vector<std::pair<std::string, bool>> parameters;
};

// How a text that may still grow stands to the offered names.
enum class NameFit { kNone, kBeginning, kWhole };

class Tools {
 public:
  Tools() = default;
  explicit Tools(std::vector<Tool> tools) : tools_(std::move(tools)) {}

  // From the JSON text of a request's `tools` (OpenAI's shape); empty text or null: none offered.
  // kInvalidArgument names what is wrong.
  static Result<Tools> from_json(std::string_view json);

  bool empty() const { return tools_.empty(); }
  const std::vector<Tool>& all() const { return tools_; }
  const Tool* find(std::string_view name) const;
  // kWhole: an offered name, which may be the beginning of a longer one as well.
  NameFit fit(std::string_view text) const;

 private:
  std::vector<Tool> tools_;
};

// Whether a value that stands for `key` is text whatever it looks like.
bool text_alone(const Tool& tool, std::string_view key);

}  // namespace bulkhead::model::answer
