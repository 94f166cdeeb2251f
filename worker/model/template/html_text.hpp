// HTML's tags and entities in text, as Python's MarkupSafe 3 and its html.unescape read them.
#pragma once

#include "worker/model/template/run.hpp"
#include "worker/model/template/text.hpp"

namespace bulkhead::jinja {

// Removes comments, then tags; makes each stretch of white space one space; then replaces entities by what they name.
Text without_tags(Run& run, const Text& text);

}  // namespace bulkhead::jinja
