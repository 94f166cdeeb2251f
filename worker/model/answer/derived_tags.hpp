// Derives calls with a pair of tags for each argument: the part of derived_family.hpp that needs further renderings.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "worker/model/answer/family.hpp"

namespace bulkhead::model::answer {

// A rendering of a call with one argument, and how to make others.
struct TagProbe {
  std::string_view name, key, value;  // of that call; the value is text
  // Renders a conversation that ends with a call of this name with other arguments. Gives nothing if the template
  // refuses.
  std::function<std::optional<std::string>(const nlohmann::ordered_json& arguments)> render;
};

// Derives the syntax, the ends of a name, and the tags of arguments. `text` has the call, and begins before its name.
// Returns where the closing tag of its value ends; nothing if the template has no tags that can be told apart.
std::optional<std::size_t> derive_tags(std::string_view text, const TagProbe& probe, Calls& calls);

// Completes what derive_tags() began once `calls` has the marks around a call. Returns false if a call has no closing
// mark.
bool close_tagged_call(Calls& calls);

}  // namespace bulkhead::model::answer
