// Finds the members of a JSON object and returns their text as it was written. A parsed value loses the order of keys
// and the form of numbers, and chat templates show both to models.
#pragma once

#include <span>
#include <string_view>

namespace bulkhead {

struct JsonMember {
  std::string_view name;
  std::string_view text = {};  // empty: the object has no such member
};

// `object` is the text of a valid JSON object; the returned texts point into it. If a name occurs twice, the last one
// counts, as in parsers. Linear time; thread-safe.
void find_json_members(std::string_view object, std::span<JsonMember> members);

}  // namespace bulkhead
