// A value that is written as elements: a tag for each member of an object, and tags called `item` for a list's items
// (MiniMax M3).
#pragma once

#include <string>
#include <string_view>

#include "worker/model/answer/tools.hpp"

namespace bulkhead::model::answer {

// Returns the value as JSON. `open` stands before a tag's name, and `open/` before the name of its end. A text without
// elements becomes a string if the schema allows only that, and an empty list or object if the text is blank and the
// schema allows only that; otherwise typed_value() reads it. If a tag lacks its end or has another tag's, the whole
// text becomes a string.
std::string element_value(std::string_view text, std::string_view open, const ValueSchema& schema);

}  // namespace bulkhead::model::answer
