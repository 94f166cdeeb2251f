// What the setting `models[].chat_template` means.
#pragma once

#include <string_view>

namespace bulkhead::config {

// Whether it is the path of a file, and no name of a template within the model's file: it has a slash or ends with
// .jinja.
inline bool is_template_path(std::string_view chat_template) {
  return chat_template.find('/') != std::string_view::npos || chat_template.ends_with(".jinja");
}

}  // namespace bulkhead::config
