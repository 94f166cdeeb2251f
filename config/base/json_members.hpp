// The texts of an object's members, as they were written: a parsed value loses the order of keys and the
// form of numbers, which chat templates show to models.
#pragma once

#include <span>
#include <string_view>

namespace bulkhead {

struct JsonMember {
  std::string_view name;
  std::string_view text = {};  // empty: the object has none
};

// `object` is the text of a valid JSON object; the texts point into it. Of a name that is there twice
// the last one counts, as it does for parsers. Linear; thread-safe.
void find_json_members(std::string_view object, std::span<JsonMember> members);

}  // namespace bulkhead
