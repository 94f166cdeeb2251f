// Interprets the setting `models[].chat_template`.
#pragma once

#include <string_view>

namespace bulkhead::config {

// Returns whether the value is a file's path: it has a slash or ends with .jinja. Any other value names a template
// within the model's file.
inline bool is_template_path(std::string_view chat_template) {
  return chat_template.find('/') != std::string_view::npos || chat_template.ends_with(".jinja");
}

}  // namespace bulkhead::config
