// Efforts of reasoning: clients say none, minimal, low, medium, high, xhigh or max, and each template knows some of
// these.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace bulkhead::jinja {

class Efforts {
 public:
  // Returns the prompt of a question that asks for an effort; nothing if the template refuses it.
  using Render = std::function<std::optional<std::string>(std::string_view effort)>;

  Efforts() = default;  // knows nothing
  // Finds out which efforts a template knows: those that its source names, plus low, medium and high, without those
  // that it refuses.
  Efforts(std::string_view source, const Render& render);

  // The nearest effort that the template knows; of two equally near ones the higher. An effort that is none of the
  // seven stays as it is.
  std::string_view nearest(std::string_view effort) const;

 private:
  std::map<std::string_view, std::string_view> nearest_;  // views of constants
};

}  // namespace bulkhead::jinja
