// Tells a model's files from others that later have their names, without reading them.
#pragma once

#include <string>

namespace bulkhead::orchestrator {

// Of all files that the model is of (a split model's parts are named NAME-00001-of-00003.gguf and so on):
// device, inode, size, and the times of the last change of content and of anything. The last cannot be
// set by hand, so that other content under the same size and time is seen, too. "-" where there is no
// file (the built-in model, or one that was deleted).
std::string file_mark_of(const std::string& path);

// The part of a model's mark for its setting `chat_template`, since another template makes other
// prompts of the same chats. If the setting is a path, the mark follows the file. Empty for an
// empty setting.
std::string template_mark_of(const std::string& chat_template);

// Joins both marks; "-" stays "-".
std::string joined_mark(const std::string& file_mark, const std::string& template_mark);

}  // namespace bulkhead::orchestrator
